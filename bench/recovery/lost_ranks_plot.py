"""Bar chart of `lost_ranks.py`: a bar for each way to recover, divided into phases."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from recovery.lost_ranks_run import PHASES, Loss

LABELS_PX, BARS_PX, VALUES_PX, ROW_PX, HEAD_PX, LEGEND_PX = 230, 560, 120, 28, 40, 22
COLOURS: Final = (
    "#b3261e",
    "#e07a5f",
    "#8c4a2f",
    "#4a6fa5",
    "#81a4cd",
    "#9aa0a6",
    "#0b6e4f",
    "#58a182",
    "#c9a227",
    "#6d597a",
)


def plot(title: str, labels: Mapping[str, str], losses: Mapping[str, Sequence[Loss]]) -> str:
    """Return an SVG of the median phases; a line marks the range of all kills."""
    shown = {name: some for name, some in losses.items() if some}
    most = max((loss.new_step_s for some in shown.values() for loss in some), default=1.0)
    scale = BARS_PX / most
    parts = [_text(4, 20, title, "font-size='13' font-weight='bold'")]
    for row, (name, some) in enumerate(shown.items()):
        parts += _bar(HEAD_PX + row * ROW_PX, labels[name], some, scale)
    bottom = HEAD_PX + len(shown) * ROW_PX + LEGEND_PX
    left = 4
    for phase, colour in zip(PHASES, COLOURS, strict=True):
        parts.append(f'<rect x="{left}" y="{bottom - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(left + 16, bottom, phase))
        left += 30 + 7 * len(phase)
    width, height = LABELS_PX + BARS_PX + VALUES_PX, bottom + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _bar(top: int, label: str, some: Sequence[Loss], scale: float) -> list[str]:
    parts = [_text(4, top + 16, label)]
    left = float(LABELS_PX)
    for phase, colour in zip(PHASES, COLOURS, strict=True):
        values = [loss.phases[phase] for loss in some if phase in loss.phases]
        width = statistics.median(values) * scale if values else 0.0
        parts.append(
            f'<rect x="{left:.1f}" y="{top + 4}" width="{width:.1f}" height="{ROW_PX - 10}" fill="{colour}"/>'
        )
        left += width
    ends = [loss.new_step_s for loss in some]
    low, high = LABELS_PX + min(ends) * scale, LABELS_PX + max(ends) * scale
    middle = top + ROW_PX // 2 - 1
    parts.append(
        f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8" stroke="black"/>'
    )
    parts.append(_text(high + 6, top + 16, f"{statistics.median(ends):.2f} s"))
    return parts


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
