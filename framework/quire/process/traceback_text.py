"""Exceptions as text that can be sent to another process, without frames and their tensors.

A plugin's exception may be long, contain invalid characters, or be its own cause.
"""

import traceback

from quire.errors import CauseError

MAX_CAUSE_BYTES = 16 * 1024


def sendable(text: str) -> str:
    """Return a text with characters escaped that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_text(error: BaseException) -> str:
    """Return the end of an exception's traceback, causes included."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return sendable(text).encode()[-MAX_CAUSE_BYTES:].decode("utf-8", "ignore")


def with_cause(error: BaseException) -> str:
    """Return an error's message, with one line of its cause unless the message contains it."""
    message, cause = str(error), error.__cause__
    if cause is None:
        return message
    lines = _message(cause).strip().splitlines() or [type(cause).__name__]
    line = lines[-1] if isinstance(cause, CauseError) else lines[0]
    return message if line in message else f"{message} ({line})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` of a plugin's exception may fail
        return type(error).__name__


def cause_text(error: BaseException) -> str | None:
    """Return the traceback of an error's cause; None without a cause."""
    cause = error.__cause__
    if cause is None:
        return None
    return str(cause) if isinstance(cause, CauseError) else traceback_text(cause)
