"""Hostile request bodies for every route with a JSON body, and the cost of each response.

Bodies are drawn from a seed.
"""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.code_upload.tree import BODY_BYTES
from holdfast_worker.protocol.reports import MAX_BODY_BYTES
from support.simulated_service import SimulatedService

JSON: Final = {"Content-Type": "application/json"}
SMALL_BYTES: Final = 20_000
"""Smaller bodies are not sent a second time to measure memory."""
VALID_VALUES: Final[Mapping[str, Any]] = {
    "a": 1,
    "at": "2026-03-01T12:00:00Z",
    "attempt": 1,
    "key": "k",
    "kind": "point",
    "monthly_usd": 5,
    "n": 1,
    "name": "x",
    "on_reached": "pause",
    "path": "a.py",
    "role": "member",
    "size_bytes": 1,
    "task": "run: x\n",
    "url": "https://example.com/x",
    "values": {"loss": 1.0},
}
"""Valid values of common fields, so that validation continues beyond the first error."""


@dataclass(frozen=True, slots=True)
class Body:
    """One request with a hostile body."""

    route: str
    """Method and template of the path."""
    kind: str
    """The generator of the body."""
    content: bytes

    @property
    def is_of_worker(self) -> bool:
        """Whether the route belongs to the workers of a job."""
        return self.route.endswith(("/reports", "/muster", "/rendezvous"))


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time and memory of one response."""

    body: Body
    status: int
    cpu_s: float
    peak_bytes: int

    @property
    def summary(self) -> str:
        """The request as one readable line."""
        body = self.body
        return f"{body.route} {body.kind}, {len(body.content)} bytes: {body.content[:60]!r}: {self.status}"


def routes(description: Mapping[str, Any]) -> dict[str, list[str]]:
    """The routes that take a JSON body, with the names of their fields."""
    schemas = description["components"]["schemas"]
    found: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                text = json.dumps(content["application/json"]["schema"])
                names = [name for name in schemas if f'/{name}"' in text]
                fields = [field for name in names for field in schemas[name].get("properties", {})]
                found[f"{method.upper()} {path}"] = fields
    return found


def _room(route: str) -> int:
    return BODY_BYTES if "/v1/code/" in route else MAX_BODY_BYTES


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _times(piece: bytes, most: int) -> bytes:
    return piece * (most // len(piece))


def _nested(draw: random.Random, most: int) -> bytes:
    piece = draw.choice([b"[", b'{"a":', b"[[[{", b'[{"b":'])
    return _times(piece, draw.choice([2_000, 100_000, most]))


def _closed(draw: random.Random, most: int) -> bytes:
    depth = draw.choice([60, 500, 900, 5_000, most // 8])
    return draw.choice([b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth])


def _number(draw: random.Random, most: int) -> bytes:
    length = draw.choice([400, 4_000, 100_000, most - 100])
    return draw.choice([b"1" * length, b"-" + b"9" * length, b"1." + b"1" * length, b"1e" + b"9" * length, b"0." + b"0" * length + b"1"])  # fmt: skip


def _long(draw: random.Random, most: int) -> bytes:
    letter = draw.choice([b"x", b" ", b"\\u0000", b"\\ud800", "é".encode(), b"\\u00e9", b"\\n", b"\\\\", b"a, ", b'\\"', b"{", b"https://"])  # fmt: skip
    return b'"' + _times(letter, draw.choice([2_000, 100_000, most - 100])) + b'"'


def _wide(draw: random.Random, most: int) -> bytes:
    pieces = [b"1", b"[]", b"{}", b'""', b"null", b"1.5e300", b'"a"', b"[1]", b'{"a":1}', b'"\\u0041"']  # fmt: skip
    piece = draw.choice(pieces) + b","
    values = draw.choice([500, 9_000, 19_000, most // len(piece) - 9])
    return b"[" + piece * min(values, most // len(piece) - 9) + b"1]"


def _keyed(draw: random.Random, most: int) -> bytes:
    count = draw.choice([100, 2_000, 9_000, 19_900, most // 14])
    name = draw.choice(["k{}", "{}", "task{}", "\u00e9{}", "K" * 40 + "{}", "A{}"])
    value = draw.choice([1, "v", [], {}, None, 1.5, {"a": [1]}])
    return _text({name.format(n): value for n in range(count)})[: most - 100]


def _repeated(draw: random.Random, most: int) -> bytes:
    pair = draw.choice([b'"a":1,', b'"task":"run: x",', b'"name":[],', b'"env":{"A":"1"},'])
    count = draw.choice([1_000, 6_000, most // len(pair) - 9])
    return b"{" + pair * count + b'"z":1}'


def _items(draw: random.Random, most: int) -> bytes:
    """Many objects of a known form, as in reports, trees and channels.

    Each has at most one error.
    """
    one = {name: value for name, value in VALID_VALUES.items() if draw.random() < 0.5}
    one[draw.choice(["values", "url", "n", "zzz", "kind"])] = draw.choice([-1, "x" * 300, [], {}, None, 1e308])  # fmt: skip
    piece = _text(one)
    count = min(draw.choice([100, 1_000, 5_000]), most // (len(piece) + 1) - 9)
    return b"[" + b",".join([piece] * count) + b"]"


def _yaml(draw: random.Random, most: int) -> bytes:
    count = draw.choice([300, 2_000, 9_000])
    text = draw.choice(
        [
            lambda: "x0: &x0 {a: 1}\n" + "".join(f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}]}}\n" for n in range(1, 60)),
            lambda: "".join(f"a{n}: &a{n} !!float {n}.5e1\n" for n in range(count)),
            lambda: "[" * count,
            lambda: "a: " + "1" * 100_000,
            lambda: "a: " + "1:" * 50_000 + "1",
            lambda: "run: x\n" + "? [a]\n: 1\n" * count,
            lambda: "run: |\n" + "  echo é\n" * count,
            lambda: "run: x\nenvs:\n" + "".join(f"  A{n}: '1'\n" for n in range(min(count, 990))),
            lambda: "run: x\nresources: {any_of: [" + "{accelerators: 'A100:8', infra: aws}, " * (count // 30) + "]}",
            lambda: "run: x\n" + " " * 200_000 + "\n",
            lambda: "run: x\n" + "#" * 200_000,
            lambda: "run: x\n" + "!!python/name:os.system {}: 1\n".format("a" * count),
            lambda: "- " * count,
            lambda: "run: '" + "\\u0041" * 20_000 + "'",
            lambda: 'run: "' + "\\u0041" * 20_000 + '"',
        ]
    )()  # fmt: skip
    return _text(text[: most - 200])


def _blank(draw: random.Random, most: int) -> bytes:
    return _times(draw.choice([b" ", b"\n", b"\t \n", b"\xef\xbb\xbf", b"\x00", b"\xff"]), most - 9)


KINDS: Final[Mapping[str, Callable[[random.Random, int], bytes]]] = {
    "nested": _nested,
    "closed": _closed,
    "number": _number,
    "long": _long,
    "wide": _wide,
    "keyed": _keyed,
    "repeated": _repeated,
    "items": _items,
    "yaml": _yaml,
    "blank": _blank,
}


def bodies(seed: int, of: Mapping[str, list[str]]) -> Iterator[Body]:
    """Infinite bodies for these routes in turn: wholly hostile, or with one hostile value."""
    draw = random.Random(seed)
    while True:
        for route, fields in of.items():
            kind = draw.choice([*KINDS])
            most = _room(route) // draw.choice([1, 1, 4])
            inner = KINDS[kind](draw, most - 4_000)
            if fields and draw.random() < 0.8:
                field = draw.choice(fields)
                rest = {
                    name: VALID_VALUES.get(name, "x") for name in fields if name in VALID_VALUES
                }
                rest.pop(field, None)
                result = _text(rest)[1:-1]
                inner = (
                    b"{" + result + (b"," if result else b"") + _text(field) + b":" + inner + b"}"
                )
                kind = f"{kind} in {field}"
            yield Body(route, kind, inner[: _room(route)])


def with_value(of: Mapping[str, list[str]], value: str) -> Iterator[Body]:
    """One body per field of these routes: valid, except for this JSON value in the field."""
    for route, fields in of.items():
        for field in fields:
            rest = {
                name: VALID_VALUES[name]
                for name in fields
                if name in VALID_VALUES and name != field
            }
            content = _text({**rest, field: None})
            yield Body(
                route, f"{value} in {field}", content.replace(b":null", b":" + value.encode())
            )


def cost(world: SimulatedService, body: Body, job_id: str, headers: Mapping[str, str]) -> Cost:
    """The cost of a response: CPU time of one request, and peak memory of a second one."""
    names = {
        "job_id": job_id,
        "project": "default",
        "user": "ada",
        "sweep_id": "none",
        "command_id": "none",
        "shell_id": "none",
    }
    method, path = body.route.format(**names).split()

    def ask() -> int:
        sent = {**JSON, **headers}
        return world.http.request(method, path, content=body.content, headers=sent).status_code

    began_s = time.process_time()
    status = ask()
    cpu_s = time.process_time() - began_s
    if len(body.content) < SMALL_BYTES:
        return Cost(body, status, cpu_s, 0)
    tracemalloc.start()
    ask()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Cost(body, status, cpu_s, peak_bytes)
