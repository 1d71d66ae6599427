"""The variables by which chat templates switch the thinking of their models."""

from typing import Any

SWITCHES = ("enable_thinking", "thinking")  # of Qwen, GLM, Gemma and others; of DeepSeek and Kimi
NO_EFFORT = "none"


def thinking_switches(is_on: bool) -> dict[str, Any]:
    """Return variables that switch the thinking on or off in any template that has a switch."""
    return dict.fromkeys(SWITCHES, is_on)


def effort_variables(effort: str | None) -> dict[str, Any]:
    """Return variables for an effort of reasoning; `none` switches the thinking off."""
    if effort is None:
        return {}
    return thinking_switches(effort != NO_EFFORT) | {"reasoning_effort": effort}
