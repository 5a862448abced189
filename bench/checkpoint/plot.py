"""Bar charts of the statistics: a panel for each measure, a bar for each candidate."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

from checkpoint.candidates import ALL, Candidate
from checkpoint.statistics import CPU, DURABLE, MEMORY, RESTORE, STALL, Figures, Measure

PANELS: Final = (STALL, DURABLE, CPU, MEMORY, RESTORE)
LABELS_PX, BAR_PX, PANEL_PX, GAP_PX, HEAD_PX = 250, 20, 210, 26, 46
COLOURS: Final = {"ours": "#0b6e4f", "ceiling": "#9aa0a6", "peer": "#4a6fa5"}


def plot(by_title: Mapping[str, Figures]) -> str:
    """Return an SVG with one block for each title."""
    blocks, top = [], 0
    for title, figures in by_title.items():
        shown = [c for c in ALL if any((c.name, m) in figures for m in PANELS)]
        blocks.append(f'<g transform="translate(0,{top})">{_block(title, figures, shown)}</g>')
        top += HEAD_PX + len(shown) * BAR_PX + GAP_PX
    width = LABELS_PX + len(PANELS) * (PANEL_PX + GAP_PX)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(blocks)}</svg>\n"
    )


def _block(title: str, figures: Figures, shown: list[Candidate]) -> str:
    parts = [_text(4, 16, title, "font-size='13' font-weight='bold'")]
    for row, candidate in enumerate(shown):
        weight = "font-weight='bold'" if candidate.name == "ours" else ""
        parts.append(_text(4, HEAD_PX + row * BAR_PX + 14, candidate.label, weight))
    for column, measure in enumerate(PANELS):
        left = LABELS_PX + column * (PANEL_PX + GAP_PX)
        better = "more" if measure.more_is_better else "less"
        parts.append(
            _text(left, HEAD_PX - 8, f"{measure.name}, {measure.unit} ({better} is better)")
        )
        parts += _bars(figures, shown, measure, left)
    return "".join(parts)


def _bars(figures: Figures, shown: list[Candidate], measure: Measure, left: int) -> list[str]:
    known = {c.name: f for c in shown if (f := figures.get((c.name, measure)))}
    most = max((f.high for f in known.values()), default=1.0) or 1.0
    scale = (PANEL_PX - 50) / most
    parts = []
    for row, candidate in enumerate(shown):
        figure = known.get(candidate.name)
        if figure is None:
            continue
        kind = "ours" if candidate.name == "ours" else "ceiling" if candidate.is_ceiling else "peer"
        top = HEAD_PX + row * BAR_PX
        low, high = left + figure.low * scale, left + figure.high * scale
        parts += [
            f'<rect x="{left}" y="{top + 3}" width="{figure.median * scale:.1f}" height="{BAR_PX - 6}" fill="{COLOURS[kind]}"/>',
            f'<path d="M{low:.1f} {top + 10}H{high:.1f}M{low:.1f} {top + 6}v8M{high:.1f} {top + 6}v8" stroke="black"/>',
            _text(high + 4, top + 14, f"{figure.median:.{measure.digits}f}"),
        ]
    return parts


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
