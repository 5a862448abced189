# Holdfast. `make` alone says what there is to make.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WEB := service/holdfast/web/index.html
TRACKIO := build/trackio
# What the dashboard is made of. Its types follow from the description of the API.
PAGES := $(shell find dashboard -type f -not -path '*/node_modules/*' -not -name schema.d.ts) docs/reference/openapi.json
# Test processes side by side: one more than cores, as many tests wait. More: tests with ranks of their own time out. Fewer: the machine idles.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 1 : 8)))

.PHONY: help setup demo test test-all e2e e2e-smoke skypilot trackio bench bench-checkpoint bench-dashboard bench-ingest bench-reads bench-slurm check clean dev lock chromium postgres slurm screenshots wheel contract

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) $(WEB) ## .venv with holdfast and holdfast-worker in it, every package at its pinned version; the dashboard

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

dev: setup ## the dashboard from its sources, anew with every change, before a service that runs (HOLDFAST_URL)
	@dashboard/npm.sh run dev

demo: setup ## a job on this machine, preempted twice, resumed, and compared with an uninterrupted one
	@$(BIN)/holdfast demo

test: setup postgres slurm chromium skypilot trackio ## all tests but those with the real SkyPilot over a fake cloud
	@echo "tests/e2e/skycloud runs the real SkyPilot over a fake cloud, and not from here: make e2e-smoke, make e2e (root, Debian, 5 GB)"
	dashboard/npm.sh test --silent
	@# Where Python is told to write no bytecode, each of a thousand processes would compile all of it anew.
	@$(BIN)/python -m compileall -q service worker tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --ignore=tests/e2e/skycloud --durations=20 --junitxml=build/tests.xml

test-all: export HOLDFAST_TEST_FULL := 1
test-all: test ## the same tests with all repetitions: 100 seeds of each storm, all generated cases; half an hour more

e2e: setup ## the tests with the real SkyPilot over a fake cloud on this machine; needs root, Debian, 5 GB and an hour
	@PYTHONPATH=tests $(BIN)/python -m e2e.skycloud enter $(BIN)/python -m pytest tests/e2e/skycloud

e2e-smoke: setup ## one job on the real SkyPilot that loses its nodes twice; needs what e2e needs, and minutes
	@if [ "$$(id -u)" != 0 ] && [ -z "$$HOLDFAST_TEST_ALL" ]; then \
		echo "skipped: the fake cloud needs root, for network namespaces and mounts"; exit 0; \
	fi; \
	PYTHONPATH=tests $(BIN)/python -m e2e.skycloud enter $(BIN)/python -m pytest tests/e2e/skycloud/test_two_preemptions.py

bench: setup ## what the service costs on top of SkyPilot, beside it; needs what e2e needs
	@PYTHONPATH=tests $(BIN)/python -m e2e.skycloud enter $(BIN)/python bench/skypilot

bench-checkpoint: setup ## what a checkpoint costs, beside torch.save and torch's distributed checkpoint; BENCH="--sizes 0.5" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m checkpoint $(BENCH)

bench-ingest: setup postgres ## what it costs to take reports of 1,000 workers, beside an endpoint that stores nothing; BENCH="--only sqlite" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m ingest $(BENCH)

bench-reads: setup postgres ## how long lists and sums take over 10,000 jobs and a million events; BENCH="--jobs 1000 --events 100000" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m reads $(BENCH)

bench-dashboard: setup chromium ## whether the dashboard stays smooth over 10,000 jobs, 100,000 points and a million lines; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m dashboard $(BENCH)

bench-slurm: setup slurm ## how long a job on Slurm is away whose nodes were taken, beside a plain one; BENCH="--times 1" for less
	@PYTHONPATH=tests:bench $(BIN)/python -m slurm $(BENCH)

screenshots: setup chromium ## the pictures in the documentation anew, from a demonstration
	@PYTHONPATH=tests $(BIN)/python -m web.screenshots "$$(command -v chromium || command -v chromium-browser)"

wheel: setup ## dist/: the package as a wheel, with the dashboard in it
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

contract: setup ## record what this version promises to clients, workers and replicas; once for each release
	mkdir -p build
	PYTHONPATH=tests $(BIN)/python -m promises > build/contract.json
	mv build/contract.json "tests/house/contract/$$($(BIN)/python -c 'import holdfast; print(holdfast.__version__)').json"

check: setup ## format, lint, types, walls between packages, spelling, house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m pytest tests/test_tidy.py

clean: ## remove everything that make made
	rm -rf $(VENV) service/holdfast/web dashboard/node_modules dashboard/src/api/schema.d.ts build dist .demo .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## requirements.lock anew: what pyproject.toml needs now, at the versions pinned so far
	rm -rf build/lock
	"$(PYTHON)" -m venv build/lock
	build/lock/bin/pip install --quiet --constraint requirements.lock '.[dev]'
	@{ grep '^#' requirements.lock; \
		build/lock/bin/pip freeze --all --exclude pip --exclude holdfast-train | sed 's/^\(torch==[0-9.]*\)+.*/\1/'; \
		} > build/requirements.lock
	@mv build/requirements.lock requirements.lock && rm -rf build/lock

# The tests start a PostgreSQL of their own where one is installed, and say that they skip that half where none is.
postgres:
	@if command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing PostgreSQL, which half of the database tests run on"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql >/dev/null; then exit 0; fi; \
	fi; \
	echo "PostgreSQL is not installed: the tests that need it will be skipped. On Debian: sudo apt-get install postgresql"

# The tests of the Slurm launcher start a Slurm of their own, in namespaces, and say that they skip where none can be.
slurm:
	@if command -v slurmctld >/dev/null || test -x /usr/sbin/slurmctld; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Slurm, on which its launcher is tested"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends slurm-wlm munge iproute2 >/dev/null; then exit 0; fi; \
	fi; \
	echo "Slurm is not installed: the tests that need it will be skipped. On Debian: sudo apt-get install slurm-wlm munge iproute2"
	@# Only where packages start no daemons, as in Debian's containers: elsewhere the whole machine would listen.
	@if command -v sshd >/dev/null || test -x /usr/sbin/sshd; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { /usr/sbin/policy-rc.d ssh start 2>/dev/null; [ $$? = 101 ]; }; then \
		echo "installing sshd, for a login node that is reached by ssh"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openssh-client openssh-server >/dev/null; then exit 0; fi; \
	fi; \
	echo "sshd is not installed: the tests of Slurm that need it will be skipped. On Debian: sudo apt-get install openssh-server"

# The tests of the dashboard look at it in Chromium, and say that they skip where none is.
chromium:
	@if command -v chromium >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Chromium, in which the dashboard is tested"; \
		if apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; then exit 0; fi; \
	fi; \
	echo "Chromium is not installed: the tests that need it will be skipped. On Debian: sudo apt-get install chromium"

# SkyPilot reads the tasks that Holdfast renders, in an environment of its own beside that of the fake cloud.
skypilot: setup
	@PYTHONPATH=tests $(BIN)/python -m e2e.skycloud environment \
		|| echo "SkyPilot could not be installed: the tests that need it will be skipped"

# Trackio needs newer versions of packages that Holdfast pins.
trackio: $(TRACKIO)/.ready

$(TRACKIO)/.ready: tests/worker/trackio.lock | $(READY)
	@{ $(BIN)/python -m venv $(TRACKIO) && $(TRACKIO)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@; } \
		|| echo "trackio could not be installed: the test that needs it will be skipped"
