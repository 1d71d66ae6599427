"""Errors of sampler steps, which name the step and its plugin."""

from quire.errors import RequestFailedError


def step_error(name: str, error: Exception) -> RequestFailedError:
    """Return the error of a step that raised.

    Args:
        name: Name of the step and its plugin.
        error: What it raised; a client sees only its type.
    """
    return RequestFailedError(f"{name} failed: {type(error).__name__}")
