"""An exception as text that every process can send: it holds no frame, and so no tensor.

What a plugin raises may be long, hold characters that are no text, or come from itself.
"""

import traceback

from quire.errors import CauseError

MAX_CAUSE_BYTES = 16 * 1024


def sendable(text: str) -> str:
    """Return a text in which what UTF-8 cannot say is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_text(error: BaseException) -> str:
    """Return the end of an exception's traceback, with all that it comes from."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return sendable(text).encode()[-MAX_CAUSE_BYTES:].decode("utf-8", "ignore")


def with_cause(error: BaseException) -> str:
    """Return an error's message, and in one line what it comes from if it does not say so."""
    message, cause = str(error), error.__cause__
    if cause is None:
        return message
    lines = _message(cause).strip().splitlines() or [type(cause).__name__]
    line = lines[-1] if isinstance(cause, CauseError) else lines[0]
    return message if line in message else f"{message} ({line})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a plugin's own exception may fail at that, too
        return type(error).__name__


def cause_text(error: BaseException) -> str | None:
    """Return the traceback of what an error was raised from; None if that is nothing."""
    cause = error.__cause__
    if cause is None:
        return None
    return str(cause) if isinstance(cause, CauseError) else traceback_text(cause)
