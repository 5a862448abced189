# The service in a container. The default EXTRAS contain no torch, which suits training on other machines.
# Jobs with `infra: local` run in this container and need EXTRAS=service,worker,postgres.
# `--target skypilot` builds SkyPilot's API server instead, which has its own Python packages.

# The base of every stage. docs/decisions/0077 says where its digest comes from.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS=service,postgres
WORKDIR /src
COPY requirements.lock requirements-docs.lock release/tools.lock ./
RUN pip install --no-cache-dir --constraint requirements.lock build hatchling
RUN python -m venv /docs && /docs/bin/pip install --no-cache-dir --requirement requirements-docs.lock
RUN python -m venv /tools && /tools/bin/pip install --no-cache-dir --requirement tools.lock
COPY . .
# Build the dashboard with a Node that exists only in this stage.
RUN python -m venv .venv && dashboard/npm.sh ci --ignore-scripts && dashboard/npm.sh run build
RUN NO_MKDOCS_2_WARNING=1 /docs/bin/python -m mkdocs build --quiet
RUN python -m build --wheel --no-isolation --outdir /wheel
RUN python -m venv /app \
    && /app/bin/pip install --no-cache-dir --constraint requirements.lock "$(echo /wheel/*.whl)[${EXTRAS}]" \
    && /tools/bin/cyclonedx-py environment --output-reproducible --spec-version 1.6 --output-file /app/sbom.cdx.json /app/bin/python

FROM ${PYTHON_IMAGE} AS skypilot
LABEL org.opencontainers.image.title="SkyPilot for Holdfast" \
    org.opencontainers.image.description="SkyPilot's API server, which asks Holdfast before it launches one of its jobs." \
    org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends curl git netcat-openbsd openssh-client procps rsync socat \
    && rm -rf /var/lib/apt/lists/*
COPY requirements-skypilot.lock /
RUN python -m venv /skypilot \
    && /skypilot/bin/pip install --no-cache-dir --requirement /requirements-skypilot.lock
# With this module SkyPilot asks the service before it launches one of the service's jobs. It contains no secret.
COPY --chmod=0644 service/holdfast/skypilot_server/holdfast_gate.py /skypilot/lib/python3.11/site-packages/
# The same user as in the service's image, so that both can read shared files. ssh reads the home folder from passwd, not from HOME.
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/holdfast/skypilot holdfast \
    && install --directory --owner=holdfast --group=holdfast --mode=0700 /var/lib/holdfast \
        /var/lib/holdfast/skypilot /var/lib/holdfast/skypilot-launches /var/lib/holdfast/wheels
# TZ: SkyPilot writes local times without a zone. IS_SKYPILOT_SERVER: without it, the configuration is read as a client's.
ENV PATH=/skypilot/bin:$PATH \
    HOME=/var/lib/holdfast/skypilot \
    TZ=UTC \
    IS_SKYPILOT_SERVER=true \
    SKYPILOT_DISABLE_USAGE_COLLECTION=1 \
    DO_NOT_TRACK=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/holdfast/skypilot
VOLUME /var/lib/holdfast/skypilot
EXPOSE 46580
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["curl", "--fail", "--silent", "--show-error", "http://127.0.0.1:46580/api/health"]
ENTRYPOINT ["python", "-m", "sky.server.server"]
CMD ["--host=0.0.0.0", "--port=46580"]

FROM ${PYTHON_IMAGE}
# `make release` adds the version and the revision.
LABEL org.opencontainers.image.title="Holdfast" \
    org.opencontainers.image.description="Runs PyTorch training jobs on spot nodes: exact resume after preemptions, and a bill for every cent." \
    org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --create-home holdfast \
    && install --directory --owner=holdfast --group=holdfast --mode=0700 /var/lib/holdfast \
        /var/lib/holdfast/skypilot /var/lib/holdfast/skypilot-launches /var/lib/holdfast/wheels
# With a bill of materials of its Python packages, /app/sbom.cdx.json.
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH \
    HOLDFAST_HOME=/var/lib/holdfast \
    PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /var/lib/holdfast
EXPOSE 8642
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8642/healthz', timeout=2)"]
ENTRYPOINT ["holdfast"]
CMD ["serve", "--host", "0.0.0.0"]
