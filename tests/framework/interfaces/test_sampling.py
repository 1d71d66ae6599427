import pytest
import torch

from quire.errors import InvalidRequestError, PluginError
from quire.interfaces.sampling import STAGES, RequestField, SamplerCapabilities
from quire.testing.sampling.sampled_rows import sampled_rows


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**63), (int, -(2**63) - 1), (int, 1.5), (int, True), (int, "1"), (int, None),
        (float, 1e39), (float, float("inf")), (float, float("nan")), (float, "1.0"), (float, True),
        (bool, 1), (bool, None),
    ],
)  # fmt: skip
def test_a_value_that_the_field_cannot_hold_is_refused_by_name(kind, value):
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
    assert SamplerCapabilities(stage="sample", needs_kernels="native").needs_kernels == "native"
    with pytest.raises(PluginError, match="must be 'triton', 'native' or None, got True"):
        SamplerCapabilities(stage="sample", needs_kernels=True)


@pytest.mark.parametrize(("kind", "values"), [(float, (0.0, 0.5, 2.0)), (int, (0, 1, 2))])
def test_the_bounds_of_a_field_belong_to_it(kind, values):
    field = RequestField("field", kind, kind(1), 0, 2)
    assert [field.check(value) for value in values] == list(values)
    for wrong in (kind(3), kind(-1)):
        with pytest.raises(InvalidRequestError, match=r"field must be an? .* from 0 to 2, got"):
            field.check(wrong)


def test_an_infinite_number_is_refused_though_nothing_bounds_it():
    for value in (float("inf"), float("-inf"), 3.5e38):
        with pytest.raises(InvalidRequestError):
            RequestField("field", float, 0.0).check(value)


def test_a_misspelt_kind_of_kernels_is_refused():
    with pytest.raises(PluginError, match="got 'tritn'"):
        SamplerCapabilities(stage="filter", needs_kernels="tritn")


def test_a_stage_that_no_pipeline_has_is_refused():
    with pytest.raises(PluginError, match=r"must be one of penalty, bias, .*, got 'middle'"):
        SamplerCapabilities(stage="middle")


def test_penalties_and_biases_come_before_the_temperature_and_filters_behind_it():
    assert STAGES == ("penalty", "bias", "temperature", "filter", "sample")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"stage": "sample", "is_opt_in": True}, "leave is_opt_in out"),
        ({"stage": "sample", "is_fusible": True}, "another stage than 'sample'"),
        ({"stage": "filter", "is_fusible": True, "is_opt_in": True}, "leave out is_opt_in"),
        ({"stage": "penalty", "is_fusible": True, "reads_counts": True}, "reads_counts and states"),
        ({"stage": "filter", "is_fusible": True, "states": ("mu",)}, "reads_counts and states"),
    ],
)
def test_capabilities_that_exclude_each_other_are_refused(declared, words):
    with pytest.raises(PluginError, match=words):
        SamplerCapabilities(**declared)


@pytest.mark.parametrize(
    ("states", "fields"),
    [
        (("mu", "mu"), ()),
        (("seed",), ()),
        (("child",), ()),
        (("tau",), (RequestField("tau", float, 1.0),)),
        (("no name",), ()),
        (("",), ()),
    ],
)
def test_a_state_has_a_name_of_its_own(states, fields):
    with pytest.raises(
        PluginError, match=f"no field or other state of the step, got {states[-1]!r}"
    ):
        SamplerCapabilities(stage="filter", fields=fields, states=states)


@pytest.mark.parametrize(
    "given", [{"stage": "sample"}, {"stage": "bias", "is_vocab_parallel": True}]
)
def test_only_logits_processors_of_whole_rows_carry_state(given):
    with pytest.raises(PluginError, match="with the state 'mu' must be a logits processor"):
        SamplerCapabilities(states=("mu",), **given)


def test_some_of_the_rows_have_their_own_values():
    shift = SamplerCapabilities(stage="bias", fields=(RequestField("shift", float, 0.0),))
    fields = [{"shift": float(row)} for row in range(4)]
    rows = sampled_rows(shift, fields, slots=[5, 0, 9, 2], positions=[4, 5, 6, 7])
    some = rows.select([3, 1], torch.tensor([3, 1]))
    assert (some.slots.tolist(), some.positions.tolist()) == ([2, 0], [7, 5])
    assert some.field("shift").flatten().tolist() == [3.0, 1.0]
    assert some.host_fields == [{"shift": 3.0}, {"shift": 1.0}]
    unknown = sampled_rows(shift, fields, is_known_to_host=False)
    assert unknown.select([3, 1], torch.tensor([3, 1])).host_fields == ()
