"""The page of the faults names every point, fault and option."""

from pathlib import Path

from quire_faults.rules import CORRUPTIBLE, FAULTS, PARTS, POINTS

PAGE = (Path(__file__).parents[3] / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_point_is_on_the_page_and_those_that_can_be_corrupt_are_marked():
    for point in POINTS:
        assert f"`{point}`" in PAGE
        assert (f"`{point}`*" in PAGE) == (point in CORRUPTIBLE), point


def test_every_fault_and_option_is_on_the_page():
    assert [fault for fault in FAULTS if f"| `{fault}` |" not in PAGE] == []
    assert [option for option in PARTS if option and f"`{option}`" not in PAGE] == []
