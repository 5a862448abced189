"""A text table of statistics with their ratios to Holdfast."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint.candidates import ALL
from checkpoint.statistics import Figures, Measure, goals


def table(figures: Figures, measures: Sequence[Measure]) -> str:
    """One row for each candidate: median, range, and in brackets the ratio to Holdfast."""
    shown = [c for c in ALL if any((c.name, m) in figures for m in measures)]
    rows = [["", *(f"{m.name}, {m.unit}" for m in measures)]]
    rows += [[c.label, *(_cell(figures, c.name, m) for m in measures)] for c in shown]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _cell(figures: Figures, name: str, measure: Measure) -> str:
    figure, holdfast = figures.get((name, measure)), figures.get(("ours", measure))
    if figure is None:
        return "-"
    text = f"{figure.median:.{measure.digits}f}"
    if figure.count > 1:
        text += f" ({figure.low:.{measure.digits}f}-{figure.high:.{measure.digits}f})"
    if holdfast and holdfast.median and name != "ours":
        text += f" [{figure.median / holdfast.median:.2f}x]"
    return text


def verdicts(figures: Figures, size: str) -> str:
    """List the met and missed goals."""
    return "\n".join(f"  {results}" for goal in goals(size) if (results := goal.describe(figures)))
