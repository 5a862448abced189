"""Tables as CSV (RFC 4180).

They have a header with units, dollars with six decimals, and seconds with three.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Header, Query, Response

MEDIA_TYPE: Final = "text/csv; charset=utf-8"
CSV_RESPONSE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}}
}
"""Description of a route that may respond with a table."""
FORMULA_PREFIXES: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that spreadsheets interpret as a formula."""


def usd(micros: int) -> str:
    """Format micro-dollars as decimal dollars, exactly."""
    whole, rest = divmod(abs(micros), 1_000_000)
    return f"{'-' if micros < 0 else ''}{whole}.{rest:06d}"


def seconds(ms: int) -> str:
    """Format milliseconds as decimal seconds, exactly."""
    return f"{ms // 1000}.{ms % 1000:03d}"


def text(value: str | None) -> str:
    """Escape user text so that no spreadsheet interprets it as a formula; empty for None."""
    return f"'{value}" if value and value.startswith(FORMULA_PREFIXES) else value or ""


def csv_response(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Response:
    """Return a response that is saved as `name`.csv."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(csv_text(header, rows), media_type=MEDIA_TYPE, headers=headers)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table as CSV."""
    text_of = io.StringIO()
    writer = csv.writer(text_of)
    writer.writerow(header)
    writer.writerows(rows)
    return text_of.getvalue()


def _wants_csv(
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    format: Annotated[  # noqa: A002 - the usual name of this option
        Literal["json", "csv"] | None,
        Query(description="csv for a table; an `Accept` header also selects it."),
    ] = None,
) -> bool:
    return format == "csv" if format else "text/csv" in accept


AsCsv = Annotated[bool, Depends(_wants_csv)]
"""Whether the caller requests a table instead of JSON."""
