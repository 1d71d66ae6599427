"""The language of faults: what a rule says, and what the error of a wrong one says."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import SettingsError
from quire_faults.rules import CORRUPTIBLE, POINTS, WITHHOLDABLE, Rule, parse


def test_an_empty_text_has_no_rules():
    assert parse("") == parse(" , ,") == ()


@pytest.mark.parametrize(
    ("text", "first", "last", "duration_s"),
    [
        ("step.execute:crash@20", 20, 20, 0.0),
        ("step.execute:raise", 1, None, 0.0),
        ("step.execute:raise@*", 1, None, 0.0),
        ("step.execute:raise@3+", 3, None, 0.0),
        ("step.execute:raise@3-7", 3, 7, 0.0),
        ("step.execute:delay:50ms", 1, None, 0.05),
        ("step.execute:hang@5:30s", 5, 5, 30.0),
        ("step.execute:freeze@5:1.5s", 5, 5, 1.5),
        ("step.execute:hang", 1, None, 3600.0),
    ],
)
def test_a_rule_names_calls_and_seconds(text, first, last, duration_s):
    (rule,) = parse(text)
    assert (rule.first, rule.last, rule.duration_s) == (first, last, duration_s)
    assert (rule.text, rule.point) == (text, "step.execute")


def test_several_rules_are_separated_by_commas():
    assert [rule.fault for rule in parse("sampler:raise@1, sampler:exhaust@2")] == [
        "raise",
        "exhaust",
    ]


def test_a_file_switches_a_rule_on_and_off(tmp_path):
    (rule,) = parse(f"sampler:raise@{tmp_path / 'broken'}")
    assert not rule.concerns(1)
    Path(tmp_path / "broken").touch()
    assert rule.concerns(1)
    Path(tmp_path / "broken").unlink()
    assert not rule.concerns(2)


@given(first=st.integers(1, 50), length=st.integers(0, 50), call=st.integers(1, 150))
def test_a_rule_concerns_the_calls_of_its_range(first, length, call):
    rule = Rule("", "sampler", "raise", first, first + length)
    assert rule.concerns(call) == (call in range(first, first + length + 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step", "is not of the form POINT:FAULT"),
        ("step.execute:crash@x", "is not of the form POINT:FAULT"),
        ("step.execute:crash@3:5m", "is not of the form POINT:FAULT"),
        ("step.exec:crash", "no point 'step.exec'; did you mean 'step.execute'?"),
        ("step.execute:crush", "no fault 'crush'; did you mean 'crash'?"),
        ("step.execute:delay", "a delay needs a duration"),
        ("step.execute:crash:5s", "crash has no duration"),
        ("step.execute:crash@0", "counted from 1"),
        ("step.execute:crash@7-3", "counted from 1"),
        ("step.execute:corrupt", "corrupt is possible at"),
        ("sampler:withhold", "withhold is possible at kv_store.report"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_way_out(text, words):
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert words in str(caught.value)


@given(st.text(alphabet="abz.:@*+-/0123456789,ms ", max_size=30))
def test_any_text_has_rules_or_an_error(text):
    try:
        rules = parse(text)
    except SettingsError:
        return
    assert all(rule.point in POINTS for rule in rules)


def test_every_point_has_an_option_or_needs_none():
    for point in POINTS:
        option = Rule("", point, "raise").option
        assert (option == "") == point.startswith("request_")
    assert set(POINTS) >= CORRUPTIBLE | WITHHOLDABLE
