"""The way to command the stand-in while it runs: JSON under `/_stand/`, which no fault befalls and no count counts."""

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
"""Server state, parameters of the query and members of a JSON body, the body: an answer for JSON, or a blob."""


def control(depot: ServerState, request: Request, body: bytes) -> Reply:
    """The answer to one command."""
    handler = COMMANDS.get((request.method, request.key))
    if handler is None:
        return _told({"error": f"no command {request.method} /_stand/{request.key}"}, 404)
    try:
        given = json.loads(body) if request.method == "POST" and body else {}
        answer = handler(depot, request.params | given, body)
    except (KeyError, TypeError, ValueError, Refusal) as error:
        return _told({"error": f"{type(error).__name__}: {error}"}, 400)
    if isinstance(answer, Blob):
        return Reply(200, {}, answer.views(), answer)
    return _told(answer)


def _told(answer: Any, status: int = 200) -> Reply:
    text = memoryview(json.dumps(answer).encode())
    return Reply(status, {"Content-Type": "application/json"}, [text])


def _status(depot: ServerState, _given: Mapping[str, Any], _body: bytes) -> Any:
    link, settings = asdict(depot.line.link), asdict(depot.settings)
    memory = {"idle_bytes": depot.pool.idle_bytes, "cpu_s": time.process_time()}
    return {"settings": settings, "link": link, **memory}


def _arm(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    return {"number": depot.faults.arm(Fault(**given))}


def _disarm(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    depot.faults.disarm(int(given["number"]) if "number" in given else None)


def _struck(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    number = int(given["number"])
    depot.faults.wait_struck(number, int(given["times"]), float(given["timeout_s"]))
    return {"struck": depot.faults.struck(number)}


def _set(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    replace(depot.settings, **given)  # Refuses what there is not.
    for name, value in given.items():
        setattr(depot.settings, name, value)


def _lay(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    depot.line.lay(Link(**given))


def _counts(depot: ServerState, _given: Mapping[str, Any], _body: bytes) -> Any:
    return depot.tally.told()


def _reset(depot: ServerState, _given: Mapping[str, Any], _body: bytes) -> Any:
    depot.tally.reset()


def _log(depot: ServerState, _given: Mapping[str, Any], _body: bytes) -> Any:
    return [asdict(entry) for entry in depot.tally.log()]


def _keys(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    return depot.shelf.keys(given["bucket"], given.get("prefix", ""))


def _read(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    return depot.shelf.get(given["bucket"], given["key"]).blob


def _write(depot: ServerState, given: Mapping[str, Any], body: bytes) -> Any:
    blob = Blob((depot.pool.copy([memoryview(body)]),))
    checksums = verified(blob.views(), {})
    tag = etag(blob.views(), checksums, is_md5=depot.settings.md5)
    item = StoredObject(key=given["key"], blob=blob, etag=tag, checksums=checksums, modified_s=depot.now_s())  # fmt: skip
    depot.shelf.replace(given["bucket"], item)


def _remove(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    depot.shelf.get(given["bucket"], given["key"])
    depot.shelf.remove(given["bucket"], given["key"])


def _truncate(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    item = depot.shelf.get(given["bucket"], given["key"])
    blob = Blob((depot.pool.copy(item.blob.views(0, given["size_bytes"])),))
    depot.shelf.replace(given["bucket"], replace(item, blob=blob))


def _corrupt(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    item = depot.shelf.get(given["bucket"], given["key"])
    body = depot.pool.copy(item.blob.views())
    if given["byte"] is None:
        flip_bit(body.view, depot.settings.seed, item.key)
    else:
        body.view[given["byte"]] ^= 1
    depot.shelf.replace(given["bucket"], replace(item, blob=Blob((body,))))


def _swap(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    bucket, one, other = given["bucket"], given["key"], given["other"]
    first, second = depot.shelf.get(bucket, one), depot.shelf.get(bucket, other)
    depot.shelf.replace(bucket, replace(second, key=one))
    depot.shelf.replace(bucket, replace(first, key=other))


def _clear(depot: ServerState, _given: Mapping[str, Any], _body: bytes) -> Any:
    depot.clear()


def _reserve(depot: ServerState, given: Mapping[str, Any], _body: bytes) -> Any:
    depot.pool.reserve(given["count"], given["size_bytes"])


COMMANDS: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", ""): _status,
    ("POST", "settings"): _set,
    ("POST", "link"): _lay,
    ("POST", "faults"): _arm,
    ("DELETE", "faults"): _disarm,
    ("GET", "faults"): _struck,
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
