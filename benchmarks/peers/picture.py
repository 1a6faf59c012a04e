"""The table as a bar chart: plain SVG, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterable

from .report import Row

_STYLE = """text { font: 13px sans-serif; fill: #222 } .note { fill: #666 } .back { fill: #e4e4e4 } .bar { fill: #7a8ca3 }
.ours { fill: #1a7f64 } @media (prefers-color-scheme: dark) { text { fill: #ddd } .note { fill: #999 } .back { fill: #333 } }"""
_LEFT, _WIDTH, _STEP = 150, 360, 26


def svg(rows: Iterable[Row], attentions: int, ours: str) -> str:
    """A bar per suite: the share of wrong attentions that it rejects, with what it rejects without need beside it."""
    rows = list(rows)
    height = 40 + _STEP * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img">',
        f"<title>Of {attentions} wrong attentions, how many each suite rejects</title>",
        f"<style>{_STYLE}</style>",
        f'<text x="{_LEFT}" y="18" class="note">of {attentions} wrong attentions rejected</text>',
    ]
    for i, row in enumerate(rows):
        top = 30 + i * _STEP
        share = row.killed / attentions
        alarms = f", {len(row.false_alarms)} of {row.honest} right ones too" if row.false_alarms else ""
        parts += [
            f'<text x="{_LEFT - 10}" y="{top + 14}" text-anchor="end">{row.suite}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="18" class="back"/>',
            f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH * share:.1f}" height="18" class="{"ours" if row.suite == ours else "bar"}"/>',
            f'<text x="{_LEFT + _WIDTH + 10}" y="{top + 14}">{row.killed}<tspan class="note">{alarms}</tspan></text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
