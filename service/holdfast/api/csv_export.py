"""Tables as CSV, for spreadsheets: RFC 4180, a header that names units, dollars with six decimals, seconds with three."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Header, Query, Response

MEDIA_TYPE: Final = "text/csv; charset=utf-8"
ALSO_CSV: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}}
}
"""What the description of a route says that may answer with a table."""
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""With what a cell begins that spreadsheets take for a formula."""


def usd(micros: int) -> str:
    """Micro-dollars as decimal dollars, exactly."""
    whole, rest = divmod(abs(micros), 1_000_000)
    return f"{'-' if micros < 0 else ''}{whole}.{rest:06d}"


def seconds(ms: int) -> str:
    """Milliseconds as decimal seconds, exactly."""
    return f"{ms // 1000}.{ms % 1000:03d}"


def text(value: str | None) -> str:
    """Words that somebody chose, which no spreadsheet takes for a formula; empty for None."""
    return f"'{value}" if value and value.startswith(FORMULA) else value or ""


def csv_response(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Response:
    """An answer that is saved as `name`.csv."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(page(header, rows), media_type=MEDIA_TYPE, headers=headers)


def page(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    text_of = io.StringIO()
    writer = csv.writer(text_of)
    writer.writerow(header)
    writer.writerows(rows)
    return text_of.getvalue()


def _asked(
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    format: Annotated[  # noqa: A002 - the name that people know
        Literal["json", "csv"] | None, Query(description="csv for a table; `Accept` says it, too.")
    ] = None,
) -> bool:
    return format == "csv" if format else "text/csv" in accept


AsCsv = Annotated[bool, Depends(_asked)]
"""Whether the caller wants a table instead of JSON."""
