"""Bar chart of the throughput of each engine as SVG, with a panel for each load."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from tables import load_name

WIDTH, LABELS, BAR, GAP, HEAD = 760, 240, 18, 6, 34
NAMES = {
    "out_tok_s": "output tok/s",
    "decode_tok_s": "decode tok/s",
    "prefill_tok_s": "prefill tok/s",
}
OURS, THEIRS, INK = "#2f6fab", "#b9bec4", "#222222"
STYLE = "font: 12px sans-serif"


def draw(stages: Mapping[str, Any]) -> str | None:
    """Return the drawing; None where no engines took turns."""
    parts: list[str] = []
    y = 10
    for stage in stages.values():
        for figure in next(iter(stage.get("rates", {}).values()), {}) if "rounds" in stage else ():
            known = ((label, found[figure]) for label, found in stage["rates"].items())
            rates = {label: rate for label, rate in known if rate is not None}
            parts += _panel(f"{load_name(stage['load'])}: {NAMES[figure]}", rates, y)
            y += HEAD + len(rates) * (BAR + GAP)
    if not parts:
        return None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 10}" '
        f'viewBox="0 0 {WIDTH} {y + 10}" style="{STYLE}">'
    )
    ground = f'<rect width="{WIDTH}" height="{y + 10}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _panel(title: str, rates: Mapping[str, Mapping[str, Any]], top: int) -> list[str]:
    """Bars from zero, with the interval as a line on each."""
    most = max(rate["interval"][1] for rate in rates.values())
    scale = (WIDTH - LABELS - 80) / most
    parts = [_text(10, top + 20, title, weight="bold")]
    for index, (label, rate) in enumerate(rates.items()):
        y = top + HEAD + index * (BAR + GAP)
        low, high = (LABELS + scale * end for end in rate["interval"])
        color = OURS if label.startswith("quire") else THEIRS
        middle = y + BAR / 2
        parts += [
            _text(LABELS - 8, y + 13, label, anchor="end"),
            f'<rect x="{LABELS}" y="{y}" width="{scale * rate["median"]:.1f}" height="{BAR}" '
            f'fill="{color}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="{INK}" stroke-width="1.5"/>',
            _text(high + 6, y + 13, f"{rate['median']:,.1f}"),
        ]
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}">'
        f"{escape(text)}</text>"
    )
