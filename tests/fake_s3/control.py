"""Control of the running server: JSON under `/_stand/`, exempt from faults and counters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from fake_s3.buckets import StoredObject
from fake_s3.digests import etag, verified
from fake_s3.errors import Refusal
from fake_s3.faults import Fault, flip_bit
from fake_s3.memory import Blob
from fake_s3.pace import Link
from fake_s3.reply import Reply
from fake_s3.request import Request
from fake_s3.state import ServerState

Handler = Callable[[ServerState, Mapping[str, Any], bytes], Any]
"""From the server state, the parameters (query and JSON body) and the body to JSON or a blob."""


def control(state: ServerState, request: Request, body: bytes) -> Reply:
    """Execute one command and return the reply."""
    handler = COMMANDS.get((request.method, request.key))
    if handler is None:
        return _json_reply({"error": f"no command {request.method} /_stand/{request.key}"}, 404)
    try:
        arguments = json.loads(body) if request.method == "POST" and body else {}
        answer = handler(state, request.params | arguments, body)
    except (KeyError, TypeError, ValueError, Refusal) as error:
        return _json_reply({"error": f"{type(error).__name__}: {error}"}, 400)
    if isinstance(answer, Blob):
        return Reply(200, {}, answer.views(), answer)
    return _json_reply(answer)


def _json_reply(answer: Any, status: int = 200) -> Reply:
    text = memoryview(json.dumps(answer).encode())
    return Reply(status, {"Content-Type": "application/json"}, [text])


def _status(state: ServerState, _arguments: Mapping[str, Any], _body: bytes) -> Any:
    link, settings = asdict(state.shared_link.link), asdict(state.settings)
    memory = {"idle_bytes": state.pool.idle_bytes, "cpu_s": time.process_time()}
    return {"settings": settings, "link": link, **memory}


def _arm(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    return {"number": state.faults.arm(Fault(**arguments))}


def _disarm(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    state.faults.disarm(int(arguments["number"]) if "number" in arguments else None)


def _triggered(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    number = int(arguments["number"])
    state.faults.wait_triggered(number, int(arguments["times"]), float(arguments["timeout_s"]))
    return {"triggered": state.faults.triggered(number)}


def _set(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    replace(state.settings, **arguments)  # Raises for unknown settings.
    for name, value in arguments.items():
        setattr(state.settings, name, value)


def _set_link(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    state.shared_link.set(Link(**arguments))


def _counts(state: ServerState, _arguments: Mapping[str, Any], _body: bytes) -> Any:
    return state.counters.as_json()


def _reset(state: ServerState, _arguments: Mapping[str, Any], _body: bytes) -> Any:
    state.counters.reset()


def _log(state: ServerState, _arguments: Mapping[str, Any], _body: bytes) -> Any:
    return [asdict(entry) for entry in state.counters.log()]


def _keys(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    return state.objects.keys(arguments["bucket"], arguments.get("prefix", ""))


def _read(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    return state.objects.get(arguments["bucket"], arguments["key"]).blob


def _write(state: ServerState, arguments: Mapping[str, Any], body: bytes) -> Any:
    blob = Blob((state.pool.copy([memoryview(body)]),))
    checksums = verified(blob.views(), {})
    tag = etag(blob.views(), checksums, is_md5=state.settings.md5)
    item = StoredObject(key=arguments["key"], blob=blob, etag=tag, checksums=checksums, modified_s=state.now_s())  # fmt: skip
    state.objects.replace(arguments["bucket"], item)


def _remove(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    state.objects.get(arguments["bucket"], arguments["key"])
    state.objects.remove(arguments["bucket"], arguments["key"])


def _truncate(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    item = state.objects.get(arguments["bucket"], arguments["key"])
    blob = Blob((state.pool.copy(item.blob.views(0, arguments["size_bytes"])),))
    state.objects.replace(arguments["bucket"], replace(item, blob=blob))


def _corrupt(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    item = state.objects.get(arguments["bucket"], arguments["key"])
    body = state.pool.copy(item.blob.views())
    if arguments["byte"] is None:
        flip_bit(body.view, state.settings.seed, item.key)
    else:
        body.view[arguments["byte"]] ^= 1
    state.objects.replace(arguments["bucket"], replace(item, blob=Blob((body,))))


def _swap(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    bucket, one, other = arguments["bucket"], arguments["key"], arguments["other"]
    first, second = state.objects.get(bucket, one), state.objects.get(bucket, other)
    state.objects.replace(bucket, replace(second, key=one))
    state.objects.replace(bucket, replace(first, key=other))


def _clear(state: ServerState, _arguments: Mapping[str, Any], _body: bytes) -> Any:
    state.clear()


def _reserve(state: ServerState, arguments: Mapping[str, Any], _body: bytes) -> Any:
    state.pool.reserve(arguments["count"], arguments["size_bytes"])


COMMANDS: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", ""): _status,
    ("POST", "settings"): _set,
    ("POST", "link"): _set_link,
    ("POST", "faults"): _arm,
    ("DELETE", "faults"): _disarm,
    ("GET", "faults"): _triggered,
    ("GET", "counts"): _counts,
    ("DELETE", "counts"): _reset,
    ("GET", "log"): _log,
    ("GET", "keys"): _keys,
    ("GET", "object"): _read,
    ("PUT", "object"): _write,
    ("DELETE", "object"): _remove,
    ("POST", "truncate"): _truncate,
    ("POST", "corrupt"): _corrupt,
    ("POST", "swap"): _swap,
    ("POST", "clear"): _clear,
    ("POST", "reserve"): _reserve,
}
