# The service in a container. Built with the default EXTRAS it carries no torch: right where training runs elsewhere.
# Jobs with `infra: local` run in this container, and need EXTRAS=service,worker,postgres.

FROM python:3.11.15-slim-bookworm AS build
ARG EXTRAS=service,postgres
WORKDIR /src
COPY requirements.lock .
RUN pip install --no-cache-dir --constraint requirements.lock build hatchling
COPY . .
RUN python -m build --wheel --no-isolation --outdir /wheel
RUN python -m venv /app \
    && /app/bin/pip install --no-cache-dir --constraint requirements.lock "$(echo /wheel/*.whl)[${EXTRAS}]"

FROM python:3.11.15-slim-bookworm
RUN useradd --uid 10001 --create-home holdfast \
    && install --directory --owner=holdfast --group=holdfast --mode=0700 /var/lib/holdfast
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
