"""Errors of sampler steps, which name the step and its plugin."""

from quire.errors import RequestFailedError


def step_error(name: str, error: Exception) -> RequestFailedError:
    """Return the error of a step that raised.

    Args:
        name: Name of the step and its plugin.
        error: Error that it raised. A client sees the message of a `RequestFailedError`, and of
            others the type alone.
    """
    if isinstance(error, RequestFailedError):
        return RequestFailedError(f"{name} failed: {error}")
    return RequestFailedError(f"{name} failed: {type(error).__name__}")
