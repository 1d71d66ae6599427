"""Line charts of loads as SVG: one panel for each figure, one line for each percentile."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 300, 64, 20, 40, 48
COLUMNS, NUM_TICKS = 2, 5
COLORS = ("#2f6fab", "#d1682f", "#3f8f56", "#8456a5", "#7a7a7a")
INK, GRID = "#222222", "#e2e4e7"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart; both axes begin at 0.

    Attributes:
        lines: Points of each line by its name.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Points]


def draw_panels(panels: Sequence[Panel]) -> str:
    """Return panels beside and below each other as one SVG drawing."""
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="font: 12px sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, panel in enumerate(panels):
        row, column = divmod(index, COLUMNS)
        parts += [
            f'<g transform="translate({column * WIDTH} {row * HEIGHT})">',
            *_panel(panel),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def ticks(most: float) -> list[float]:
    """Return about five round values from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / NUM_TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * unit >= raw * 0.999)
    return [step * count for count in range(math.ceil(most / step * 0.999) + 1)]


def _panel(panel: Panel) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    x_ticks = ticks(max((x for x, _ in points), default=0.0))
    y_ticks = ticks(max((y for _, y in points), default=0.0))
    x_scale = (WIDTH - LEFT - RIGHT) / x_ticks[-1]
    y_scale = (HEIGHT - TOP - BOTTOM) / y_ticks[-1]
    bottom = HEIGHT - BOTTOM
    parts = [_text(LEFT, 20, panel.title, weight="bold")]
    for value in y_ticks:
        y = bottom - value * y_scale
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:g}", anchor="end"))
    for value in x_ticks:
        parts.append(_text(LEFT + value * x_scale, bottom + 16, f"{value:g}", anchor="middle"))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="{INK}"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, panel.x_label, anchor="middle"))
    parts.append(
        f'<g transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)">'
        f"{_text(0, 0, panel.y_label, anchor='middle')}</g>"
    )
    for index, (name, line) in enumerate(panel.lines.items()):
        color = COLORS[index % len(COLORS)]
        places = [(LEFT + x * x_scale, bottom - y * y_scale) for x, y in line]
        parts += _line(places, color)
        parts.append(_text(WIDTH - RIGHT, 20 + 14 * index, name, anchor="end", color=color))
    return parts


def _line(places: Points, color: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    dots = places if len(places) <= 30 else ()
    return [line, *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in dots)]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    color: str = INK,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{color}">{escape(text)}</text>'
    )
