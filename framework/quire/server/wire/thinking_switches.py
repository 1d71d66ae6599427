"""Values of the variables by which chat templates switch the thinking of their models."""

from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.templates.thinking_variables import EFFORT, SWITCHES

NO_EFFORT = "none"
EFFORTS = (NO_EFFORT, "minimal", "low", "medium", "high", "xhigh", "max")  # of OpenAI and vLLM


def thinking_switches(is_on: bool) -> dict[str, Any]:
    """Return variables that switch the thinking on or off in any template that has a switch."""
    return dict.fromkeys(SWITCHES, is_on)


def check_effort(effort: str, where: str) -> None:
    """Check that APIs have an effort of reasoning; a template may have more.

    Args:
        effort: The effort.
        where: Path of the field.

    Raises:
        InvalidRequestError: They have not.
    """
    if effort not in EFFORTS:
        raise InvalidRequestError(
            f"{where} must be one of {', '.join(EFFORTS)}, got {effort!r:.50}; a value that only "
            "this model's template knows goes into chat_template_kwargs",
            param=where,
        )


def effort_variables(effort: str | None) -> dict[str, Any]:
    """Return variables for an effort of reasoning; `none` switches the thinking off.

    Raises:
        InvalidRequestError: The effort is none that APIs have.
    """
    if effort is None:
        return {}
    check_effort(effort, "reasoning_effort")
    return thinking_switches(effort != NO_EFFORT) | {EFFORT: effort}
