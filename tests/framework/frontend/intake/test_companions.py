"""Companions that the sampler fields of requests ask for."""

import pytest

from quire.errors import InvalidRequestError, PromptTooLongError
from quire.frontend.intake.companions import Companions
from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.sampling import RequestField
from quire.messages import Companion
from quire.sampling_params import SamplingParams

SCALE = RequestField("scale", float, 1.0)
OTHER = RequestField("other", CompanionPrompt("scale"), "")
NEUTRAL = SamplingParams(temperature=0.0)


def made(prompt=(5, 6), fields=(OTHER, SCALE), **values):
    companions = Companions(fields, lambda text, name: [1, *map(ord, text)], 8, 200)
    return companions.make({"scale": 1.0, "other": ""} | values, prompt, lambda: NEUTRAL)


def test_only_a_request_that_uses_the_switch_has_one():
    assert made() is None
    assert made(scale=2.0, fields=(SCALE,)) is None
    assert made(scale=2.0, other=[3]) == Companion([3], NEUTRAL)


def test_a_text_is_encoded_like_a_prompt():
    assert made(scale=2.0, other="a").token_ids == [1, 97]


@pytest.mark.parametrize("nothing", ["", []])
def test_without_a_prompt_it_has_the_last_token(nothing):
    assert made(scale=2.0, other=nothing).token_ids == [6]


def test_a_text_whose_tokens_the_model_does_not_have_is_refused():
    with pytest.raises(InvalidRequestError) as caught:
        made(scale=2.0, other="\u00ff")
    assert caught.value.param == "other"


def test_a_text_can_be_encoded_before():
    companions = Companions((SCALE, OTHER), lambda text, name: [*map(ord, text)], 8, 200)
    given = SamplingParams(extra_args={"scale": 2.0, "other": "ab"})
    assert companions.text_size(given) == 2
    encoded = companions.with_tokens(given)
    assert encoded.extra_args == {"scale": 2.0, "other": [97, 98]}
    assert companions.text_size(encoded) == 0
    assert companions.with_tokens(encoded) is encoded
    assert companions.with_tokens(SamplingParams()) == SamplingParams()


def test_a_prompt_without_the_switch_is_refused():
    with pytest.raises(InvalidRequestError, match="while scale is 1") as caught:
        made(other="a")
    assert caught.value.param == "other"


def test_it_leaves_room_for_a_token():
    assert len(made(scale=2.0, other=[3] * 7).token_ids) == 7
    with pytest.raises(PromptTooLongError) as caught:
        made(scale=2.0, other=[3] * 8)
    assert caught.value.param == "other"


def test_its_prompt_does_not_go_to_the_worker_twice():
    companions = Companions((SCALE, OTHER), lambda text, name: [1], 8, 200)
    given = SamplingParams(extra_args={"scale": 2.0, "other": "a"})
    assert companions.without_prompt(given).extra_args == {"scale": 2.0, "other": ""}
    assert companions.without_prompt(SamplingParams()) == SamplingParams()
