"""An effort of reasoning switches the thinking in the templates of all families."""

from quire.server.wire.thinking_switches import effort_variables, thinking_switches


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
