"""Values of the variables by which chat templates switch the thinking of their models."""

from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.templates.thinking_variables import EFFORT, SWITCHES

NO_EFFORT = "none"
EFFORTS = (NO_EFFORT, "minimal", "low", "medium", "high", "xhigh", "max")  # of OpenAI and vLLM


def thinking_switches(is_on: bool) -> dict[str, Any]:
    """Return variables that switch the thinking on or off in any template that has a switch."""
    return dict.fromkeys(SWITCHES, is_on)


def effort_variables(effort: str | None) -> dict[str, Any]:
    """Return variables for an effort of reasoning; `none` switches the thinking off.

    Raises:
        InvalidRequestError: The effort is none that APIs have. A template may have more.
    """
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise InvalidRequestError(
            f"reasoning_effort must be one of {', '.join(EFFORTS)}, got {effort!r:.50}; a value "
            "that only this model's template knows goes into chat_template_kwargs",
            param="reasoning_effort",
        )
    return thinking_switches(effort != NO_EFFORT) | {EFFORT: effort}
