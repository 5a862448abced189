"""The HTTP API of SkyPilot 0.14.1 as far as the launcher uses it.

The response to every POST is the id of a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from fake_skypilot.files import Files, unpack
from fake_skypilot.state import OVER, Cluster, Failure, Job, Request, SkyPilotState

HEADER = "X-Skypilot-Request-ID"
BEGIN = (
    b'<sky-payload>"<rich_init>[bold cyan]Waiting for task to start[/].\\n</rich_init>"</sky-payload>\n'
    b'<sky-payload>"<rich_stop></rich_stop>"</sky-payload>\n'
)
END = b'<sky-payload>"<rich_exit></rich_exit>"</sky-payload>\n'
"""The frame of a log, for the progress display of SkyPilot's command line."""
QUEUED = {"/jobs/launch", "/jobs/cancel", "/down"}
"""Requests that are executed later; requests that only read are executed at once."""


@dataclass
class Server:
    """The routes of a fake server."""

    state: SkyPilotState
    version: str = "0.14.1"
    prints: bytes = b"hello\n"
    list_s: float = 0.0
    """Duration of a queue listing."""
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """All received POST requests in order."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, Files] = field(default_factory=dict)
    """The contents of the blobs."""
    old_queue: list[dict[str, Any]] | None = None
    """The stale queue that listings show, if any."""

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """Execute all due events and respond."""
        self.state.catch_up()
        path = request.url.path
        if request.method == "GET":
            return self._get(path, request.url.params)
        if path == "/upload_v2":
            return self._upload(request)
        body = json.loads(request.content or b"{}")
        self.posts.append((path, body))
        if path == "/validate":
            return self._validate(body)
        if path == "/jobs/logs":
            lines = self.prints.splitlines(keepends=True)
            tail = body.get("tail") or len(lines)
            shown = b"".join(lines[-tail:] if tail else [])
            return httpx2.Response(200, content=b"".join((BEGIN, shown, END)))
        return self._post(path, body)

    # Reads

    def _get(self, path: str, params: httpx2.QueryParams) -> httpx2.Response:
        if path == "/api/health":
            found = {"status": "healthy", "api_version": "62", "version": self.version}
            return httpx2.Response(200, json={**found, "user": None, "basic_auth_enabled": False})
        if path == "/api/status":
            return httpx2.Response(200, json=self._statuses(params))
        if path == "/api/get":
            return self._result(params["request_id"])
        if path == "/upload_v2/blob":
            return httpx2.Response(200, json={"exists": params["blob_id"] in self.blobs})
        return httpx2.Response(404, json={"detail": "Not Found"})

    def _statuses(self, params: httpx2.QueryParams) -> list[dict[str, Any]]:
        known = [r for r in self.state.requests.values() if r.is_known]
        if wanted := params.get_list("request_ids"):
            return [_status_of(r) for r in known if r.request_id.startswith(tuple(wanted))]
        if params.get("all_status") != "true":
            known = [r for r in known if not r.is_over]
        known.sort(key=lambda r: r.number, reverse=True)
        return [_status_of(r) for r in known[: int(params.get("limit", len(known)))]]

    def _result(self, request_id: str) -> httpx2.Response:
        request = self.state.requests.get(request_id)
        if request is None or not request.is_known:
            return httpx2.Response(404, json={"detail": f"Request {request_id!r} not found"})
        age = self.state.clock.now() - request.made_at
        is_busy = request.name == "sky.jobs.queue_v2" and age.total_seconds() < self.list_s
        if request.status == "PENDING" and request.work is None and not is_busy:
            self._read(request)
        if not request.is_over:
            raise httpx2.ReadTimeout("the request is under way")
        payload = {**_status_of(request), "return_value": json.dumps(request.value)}
        if request.error is not None:
            payload["error"] = json.dumps(request.error)
            return httpx2.Response(500, json={"detail": payload})
        return httpx2.Response(200, json=payload)

    def _read(self, request: Request) -> None:
        body = request.body
        match request.name:
            case "sky.jobs.queue_v2":
                request.value = self._queue(body)
            case "sky.jobs.events":
                job = self.state.jobs.get(body["job_id"])
                events = sorted(job.events, key=_stamp, reverse=True) if job else []
                request.value = events[: body["limit"]]
            case "sky.cost_report":
                request.value = [*self._costs(body)]
        request.status = "SUCCEEDED"

    def queue(self) -> list[dict[str, Any]]:
        """All rows of the queue, newest first."""
        jobs = reversed(self.state.jobs.values())
        return [
            _row(job, is_running=bool(self.state.running_clusters(job.cluster))) for job in jobs
        ]

    def _queue(self, body: dict[str, Any]) -> dict[str, Any]:
        rows = self.queue() if self.old_queue is None else self.old_queue
        rows = [row for row in rows if body.get("name_match", "") in row["job_name"]]
        if body.get("skip_finished"):
            rows = [row for row in rows if row["status"] not in OVER]
        if (numbers := body.get("job_ids")) is not None:
            rows = [row for row in rows if row["job_id"] in numbers]
        rows = rows[: body.get("limit")]
        if (fields := body.get("fields")) is not None:
            rows = [{k: v if k in fields else None for k, v in row.items()} for row in rows]
        return {"jobs": rows, "total": len(rows), "total_no_filter": len(rows), "status_counts": {}}

    def _costs(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Costs of running clusters and of those terminated in the last days, optionally filtered."""
        now = self.state.clock.now()
        since = now - timedelta(days=body["days"])
        for cluster in self.state.clusters:
            if cluster.name not in body.get("cluster_names", [cluster.name]):
                continue
            if cluster.gone_at and cluster.gone_at < since:
                continue
            seconds = ((cluster.gone_at or now) - cluster.born_at).total_seconds()
            yield {
                "name": cluster.name,
                "cloud": "AWS",
                "status": cluster.status,
                "launched_at": int(cluster.born_at.timestamp()),
                "duration": int(seconds),
                "num_nodes": cluster.nodes,
                "total_cost": cluster.usd_per_hour * cluster.nodes * int(seconds) / 3600,
                **_made_of(body, cluster),
            }

    # Writes

    def _post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        names = {"/jobs/queue/v2": "jobs.queue_v2", "/cost_report": "cost_report"}
        name = "sky." + names.get(path, path.strip("/").replace("/", "."))
        request = self.state.ask(name, body)
        if path == "/jobs/launch":
            self.state.run(request, self.state.launch(body))
        elif path == "/jobs/cancel":
            self.state.run(request, self.state.cancel(self._named(body)))
        elif path == "/down":
            self.state.run(request, self._down(body["cluster_name"]))
        return httpx2.Response(200, content=b"null", headers={HEADER: request.request_id})

    def _named(self, body: dict[str, Any]) -> list[int]:
        """The jobs of a cancel request. SkyPilot ignores an ambiguous name without an error."""
        if body.get("job_ids"):
            return list(body["job_ids"])
        named = [job.number for job in self.state.jobs.values() if job.name == body.get("name")]
        return named if len(named) == 1 else []

    def _down(self, name: str) -> Iterator[float]:
        yield 5.0
        self.state.terminate(name)

    def _validate(self, body: dict[str, Any]) -> httpx2.Response:
        try:
            self.state.call_policy("validate", body["dag"])
        except Failure as failure:
            return httpx2.Response(400, json={"detail": failure.body})
        return httpx2.Response(200, content=b"null")

    def _upload(self, request: httpx2.Request) -> httpx2.Response:
        params = request.url.params
        blob, index, total = params["upload_id"], params["chunk_index"], params["total_chunks"]
        self.blobs[blob] = self.blobs.get(blob, b"") + request.content
        if int(index) + 1 < int(total):
            return httpx2.Response(200, json={"status": "uploading"})
        try:
            self.files[blob] = unpack(self.blobs[blob])
        except ValueError as error:
            return httpx2.Response(500, json={"detail": f"Error unzipping file: {error}"})
        return httpx2.Response(200, json={"status": "completed"})


def _status_of(request: Request) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "name": request.name,
        "entrypoint": "holdfast",
        "request_body": json.dumps(request.body),
        "status": request.status,
        "return_value": "null",
        "error": "null",
        "created_at": request.made_at.timestamp(),
        "user_id": "hfa1b2c3",
        "should_retry": False,
    }


def _row(job: Job, *, is_running: bool) -> dict[str, Any]:
    placed = is_running and job.region != "-"
    stood = job.running_since.timestamp() if job.running_since else -1.0
    started = job.controller_at.timestamp() if job.controller_at else None
    size = f"{job.nodes}x(gpus=A100:8, p4d.24xlarge, [spot], ...)"
    # For a terminated cluster SkyPilot lists its location and the requested resources, without an instance type.
    was = job.last_place or ("-", "-")
    asked = f"{job.nodes}x[A100:8][Spot]" if job.last_place else "-"
    return {
        "job_id": job.number,
        "task_id": 0,
        "job_name": job.name,
        "job_duration": 0.0,
        "status": job.status,
        "schedule_state": job.schedule,
        "cluster_resources_full": size if placed else asked,
        "cloud": "AWS" if placed or job.last_place else "-",
        "region": job.region if placed else was[0],
        "zone": job.zone if placed else was[1],
        "infra": f"AWS/{job.region}" if placed else "-",
        "recovery_count": max(0, job.runs - 1),
        "details": job.events[-1]["reason"],
        "failure_reason": None,
        "user_hash": "hfa1b2c3",
        "submitted_at": job.began_at.timestamp() if job.began_at else None,
        "start_at": None,
        "end_at": None,
        "last_recovered_at": stood,
        "controller_pid_started_at": started,
        "current_cluster_name": job.cluster if placed else None,
    }


def _made_of(body: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The resources of a cluster. The summary is simplified and has no region."""
    if body.get("dashboard_summary_response"):
        return {"resources_str": f"{cluster.nodes}x(gpus=A100:8, ...)"}
    full = f"{cluster.nodes}x(gpus=A100:8, cpus=96, mem=1152, p4d.24xlarge, [spot], disk=256)"
    return {"resources_str_full": full, "region": cluster.region}


def _stamp(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["timestamp"]).replace(tzinfo=UTC)
