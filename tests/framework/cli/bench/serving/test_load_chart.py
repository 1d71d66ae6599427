"""Charts of loads."""

import xml.etree.ElementTree as ET

import pytest

from quire.cli.bench.serving.load_chart import HEIGHT, WIDTH, Panel, draw_panels, ticks

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("most", "last", "count"), [(1, 1, 6), (97, 100, 6), (3, 3, 4), (0.0012, 0.00125, 6), (0, 1, 2)]
)
def test_ticks_are_round_and_reach_the_largest_value(most, last, count):
    found = ticks(most)
    assert found[0] == 0
    assert found[-1] == pytest.approx(last)
    assert len(found) == count


def drawn(*panels):
    return ET.fromstring(draw_panels(panels))


def test_a_line_has_its_points_between_the_axes():
    panel = Panel("speed <1>", "rate", "ms", {"p50": [(0, 0), (5, 50), (10, 100)]})
    root = drawn(panel)
    (line,) = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert points[0][0] < points[1][0] < points[2][0] < WIDTH
    assert HEIGHT > points[0][1] > points[1][1] > points[2][1] > 0
    assert points[1][0] == pytest.approx((points[0][0] + points[2][0]) / 2, abs=0.1)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"speed <1>", "rate", "ms", "p50"} <= {*texts}


def test_panels_are_beside_and_below_each_other():
    panel = Panel("t", "x", "y", {"a": [(1, 1)], "b": []})
    root = drawn(panel, panel, panel)
    assert (root.get("width"), root.get("height")) == (str(2 * WIDTH), str(2 * HEIGHT))
    places = [g.get("transform") for g in root if g.tag == f"{SVG}g"]
    assert places == ["translate(0 0)", f"translate({WIDTH} 0)", f"translate(0 {HEIGHT})"]
