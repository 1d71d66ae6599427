import pytest

from quire.errors import InvalidRequestError, PluginError
from quire.interfaces.sampling import STAGES, RequestField, SamplerCapabilities


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**63), (int, -(2**63) - 1), (int, 1.5), (int, True), (int, "1"), (int, None),
        (float, 1e39), (float, float("inf")), (float, float("nan")), (float, "1.0"), (float, True),
        (bool, 1), (bool, None),
    ],
)  # fmt: skip
def test_what_the_column_cannot_hold_is_refused_by_name(kind, value):
    with pytest.raises(InvalidRequestError, match="field") as caught:
        RequestField("field", kind, kind(0)).check(value)
    assert caught.value.param == "field"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**63 - 1), (int, -(2**63)), (float, 3), (float, -1e38), (float, 3.4028234e38),
        (bool, True), (bool, False),
    ],
)  # fmt: skip
def test_what_it_can_hold_comes_out_in_its_type(kind, value):
    checked = RequestField("field", kind, kind(0)).check(value)
    assert (type(checked), checked) == (kind, value)


def test_bounds_are_named():
    with pytest.raises(InvalidRequestError, match="margin must be a float from 0 to inf, got -1"):
        RequestField("margin", float, 1.0, 0).check(-1)


def test_a_step_that_needs_kernels_says_which_by_name():
    assert SamplerCapabilities(stage="draw", needs_kernels="native").needs_kernels == "native"
    with pytest.raises(PluginError, match="must be 'triton', 'native' or None, got True"):
        SamplerCapabilities(stage="draw", needs_kernels=True)


@pytest.mark.parametrize("value", [-0.001, 1.001, -5, 7])
def test_what_is_out_of_range_is_refused(value):
    with pytest.raises(InvalidRequestError, match="share must be a float from 0 to 1, got"):
        RequestField("share", float, 1.0, 0.0, 1.0).check(value)


@pytest.mark.parametrize("value", [0, 0.0, 1, 1.0, 0.5])
def test_the_ends_of_a_range_belong_to_it(value):
    assert RequestField("share", float, 1.0, 0.0, 1.0).check(value) == value


def test_a_stage_that_no_pipeline_has_is_refused():
    with pytest.raises(PluginError, match=r"must be one of penalty, bias, .*, got 'middle'"):
        SamplerCapabilities(stage="middle")


def test_penalties_and_biases_come_before_the_temperature_and_filters_behind_it():
    assert STAGES == ("penalty", "bias", "temperature", "filter", "draw")
