"""An effort of reasoning switches the thinking in the templates of all families."""

import pytest

from quire.errors import InvalidRequestError
from quire.server.wire.thinking_switches import (
    EFFORTS,
    check_effort,
    effort_variables,
    thinking_switches,
)


def test_each_familys_switch_is_set():
    assert thinking_switches(False) == {"enable_thinking": False, "thinking": False}


def test_an_effort_switches_the_thinking_on_and_none_off():
    assert effort_variables("low") == {
        "reasoning_effort": "low", "enable_thinking": True, "thinking": True,
    }  # fmt: skip
    assert effort_variables("none") == {
        "reasoning_effort": "none", "enable_thinking": False, "thinking": False,
    }  # fmt: skip
    assert effort_variables(None) == {}


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_known_effort_is_taken(effort):
    assert effort_variables(effort)["reasoning_effort"] == effort


@pytest.mark.parametrize("effort", ["weird", "", "High", "no_think", "x" * 1000])
def test_an_effort_that_no_api_knows_is_refused_with_the_known_ones(effort):
    for check, where in (
        (lambda: effort_variables(effort), "reasoning_effort"),
        (lambda: check_effort(effort, "output_config.effort"), "output_config.effort"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            check()
        assert caught.value.param == where
        assert str(caught.value).startswith(f"{where} must be one of")
        assert len(str(caught.value)) < 400
        for known in (*EFFORTS, "chat_template_kwargs"):
            assert known in str(caught.value)
