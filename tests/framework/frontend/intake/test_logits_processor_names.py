"""Requests name logits processors; every other name is refused with the way out."""

import pytest

from quire.errors import InvalidRequestError
from quire.frontend.intake.intake import Intake
from quire.frontend.intake.logits_processor_names import LogitsProcessorNames
from quire.interfaces.sampling import RequestField, SamplerCapabilities
from quire.sampling_params import MAX_LOGITS_PROCESSORS, SamplingParams

STRENGTH = RequestField("strength", float, 1.0, 0.0, 9.0)
SHARED = RequestField("shared", float, 1.0)
IN_USE = {
    "temperature": SamplerCapabilities(stage="temperature", fields=(SHARED,)),
    "no_commas": SamplerCapabilities(stage="bias", fields=(STRENGTH, SHARED), is_opt_in=True),
    "shout": SamplerCapabilities(stage="bias", is_opt_in=True),
}
OFFERED = {"whisper": "acme offers it: start with --samplers default,whisper"}


@pytest.fixture
def names():
    return LogitsProcessorNames(IN_USE, OFFERED)


def test_steps_that_declare_it_can_be_named(names):
    assert names.opt_in == ("no_commas", "shout")
    names.check(SamplingParams(logits_processors=["shout", "no_commas"]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temperature", r"'temperature' needs no name.*\(shared\); leave the name out"),
        ("whisper", "'whisper' is not in use; acme offers it: start with --samplers default,whi"),
        ("no_comas", r"did you mean 'no_commas'\? \(requests can name: no_commas, shout\)"),
        ("wisper", "did you mean 'whisper'"),
        ("acme.steps:Loud", "no code of a client"),
        ("acme.steps.Loud", "no code of a client"),
        ("", "there is no logits processor ''"),
        ("x" * 128, "there is no logits processor"),
    ],
)
def test_another_name_is_refused_with_the_way_out(names, name, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        names.check(SamplingParams(logits_processors=["shout", name]))
    assert caught.value.param == "logits_processors"
    assert len(str(caught.value)) < 400


def test_a_field_of_a_step_needs_the_name_of_the_step(names):
    names.check(SamplingParams(logits_processors=["no_commas"], extra_args={"strength": 2.0}))
    names.check(SamplingParams(extra_args={"shared": 2.0}))  # a step that always runs reads it
    with pytest.raises(InvalidRequestError, match=r"send logits_processors: \['no_commas'\]") as e:
        names.check(SamplingParams(logits_processors=["shout"], extra_args={"strength": 2.0}))
    assert e.value.param == "strength"


def test_the_names_of_a_request_reach_all_its_completions(tokenizer, names):
    intake = Intake(
        tokenizer, max_model_len=64, vocab_size=tokenizer.vocab_size, logits_processors=names
    )
    for count in ({"n": 2}, {"n": 1, "best_of": 2}):
        params = SamplingParams(logits_processors=["shout", "shout"], **count)
        requests = intake.admit("fox", params).requests
        assert [each.params.logits_processors for each in requests] == [("shout",)] * 2
    with pytest.raises(InvalidRequestError, match="requests can name: no_commas, shout"):
        intake.admit("fox", SamplingParams(logits_processors=["loud"]))


def test_an_engine_without_such_steps_says_so(intake):
    with pytest.raises(InvalidRequestError, match=r"\(requests can name: none\)"):
        intake.admit("fox", SamplingParams(logits_processors=["shout"]))


@pytest.mark.parametrize(
    "value",
    ["shout", len, {"shout": 1}, [len], [{"qualname": "a.B"}], [1], ["x" * 129], ["x"] * 33],
)
def test_what_is_no_list_of_names_is_refused(value):
    with pytest.raises(InvalidRequestError, match="logits_processors") as caught:
        SamplingParams(logits_processors=value)
    assert caught.value.param == "logits_processors"
    assert len(["x"] * 33) == MAX_LOGITS_PROCESSORS + 1
