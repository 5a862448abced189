"""Traces of a real service reach a collector over OTLP, and a job has one trace although the service was killed."""

from __future__ import annotations

import gzip
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
from holdfast.tracing import span_context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from support.held_example import held_example, release
from support.live_service import Service

CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736"


class Collector:
    """A server of OTLP over HTTP that keeps spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]  # fmt: skip
            self.services.update(names)
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def of_trace(self, number: bytes) -> list[Any]:
        """The spans of a trace. A killed service may send the same span twice."""
        found = [span for span in list(self.spans) if span.trace_id == number]
        return [*{span.SerializeToString(deterministic=True): span for span in found}.values()]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector, and its address."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_job_has_one_trace_over_preemptions_and_restarts(service: Service) -> None:
    service.end(signal.SIGTERM)
    with collecting() as (collector, address):
        service.environment["HOLDFAST_OTLP_ENDPOINT"] = address
        service.start()
        job = service.submit(
            name="traced",
            workdir=str(held_example(service.folder)),
            run="holdfast-worker run train.py --steps 60 --step-seconds 0.1",
            holdfast={
                "checkpoint": {"store": f"file://{service.folder}/store", "every": "10 steps"}
            },
        )
        number = span_context(job).trace_id.to_bytes(16, "big")
        service.until(job, lambda job: (job["last_checkpoint_step"] or 0) >= 10)
        # Spans of calls are not repeated after a restart, unlike those of events.
        service.wait(
            lambda: any(span.name == "submit to launcher" for span in collector.of_trace(number)),
            "the call of the launcher was exported",
        )
        service.end(signal.SIGKILL)
        service.start()
        assert service.cli("preempt", job, "--notice", "3s").returncode == 0
        release(service.folder)
        done = service.ended(job)
        service.wait(
            lambda: any(span.name == "job" for span in collector.of_trace(number)),
            "the trace is complete",
        )
        service.end(signal.SIGTERM)

    spans = collector.of_trace(number)
    names = [span.name for span in spans]
    assert done["state"] == "succeeded"
    assert names.count("attempt") == names.count("restore") == 2
    assert names.count("launch") == names.count("submit to launcher") == names.count("job") == 1
    assert {"queue", "provision", "start", "train", "save", "release", "reconcile"} <= set(names)
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans), "each span once"
    assert {span.parent_span_id for span in spans} <= {b"", *ids}
    assert collector.services == {"holdfast"}


def test_request_belongs_to_the_trace_of_its_client(service: Service) -> None:
    service.end(signal.SIGTERM)
    with collecting() as (collector, address):
        service.environment["HOLDFAST_OTLP_ENDPOINT"] = address
        service.start()
        url = f"http://127.0.0.1:{service.port}/v1/jobs/none"
        headers = {"traceparent": f"00-{CLIENT}-00f067aa0ba902b7-01"}
        answer = httpx2.get(url, headers=headers, timeout=60, verify=False)
        untraced = [
            httpx2.post(f"{url}/shells/none/read", json={"at": 0}, headers=headers, timeout=60),
            httpx2.get(
                f"http://127.0.0.1:{service.port}/sign-in/callback?code=secret",
                headers=headers,
                timeout=60,
            ),
        ]
        service.end(signal.SIGTERM)

    [span] = collector.of_trace(bytes.fromhex(CLIENT))
    assert [each.status_code for each in untraced] == [404, 303]
    shown = {a.key: a.value.string_value or a.value.int_value for a in span.attributes}
    assert span.name == "GET /v1/jobs/{job_id}"
    assert span.parent_span_id == bytes.fromhex("00f067aa0ba902b7")
    assert shown["http.response.status_code"] == answer.status_code == 404
    assert shown["holdfast.request"] == answer.headers["X-Request-ID"]
    assert shown["holdfast.job"] == "none"


def test_service_works_while_the_collector_is_away(service: Service) -> None:
    service.end(signal.SIGTERM)
    service.environment["HOLDFAST_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
    service.start()

    assert service.get("/v1/jobs").status_code == 200
    service.end(signal.SIGTERM)
    assert "Traceback" not in (service.folder / "service.log").read_text()
