"""`QuireError`s as messages to another process."""

from typing import Self

import msgspec

import quire.errors
from quire.errors import CauseError, QuireError, RequestError
from quire.process.traceback_text import cause_text, sendable

_KINDS: dict[str, type[QuireError]] = {
    name: kind
    for name, kind in vars(quire.errors).items()
    if isinstance(kind, type) and issubclass(kind, QuireError)
}


class ErrorMessage(msgspec.Struct, frozen=True, array_like=True):
    """A `QuireError` as a message to another process."""

    kind: str  # name of the nearest class of quire.errors
    message: str
    param: str | None = None
    cause: str | None = None  # traceback of its cause

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Pack an error; a type outside quire.errors is named in the message."""
        param = error.param if isinstance(error, RequestError) else None
        message, cause = sendable(str(error)), cause_text(error)
        for kind in type(error).__mro__:
            if kind.__name__ in _KINDS and _KINDS[kind.__name__] is kind:
                return cls(kind.__name__, message, param, cause)
        return cls(QuireError.__name__, f"{type(error).__name__}: {message}", cause=cause)

    def error(self, prefix: str = "") -> QuireError:
        """Return the error, with a prefix before its message."""
        kind = _KINDS.get(self.kind, QuireError)
        error = kind(prefix + self.message)
        if isinstance(error, RequestError):
            error.param = self.param
        error.__cause__ = None if self.cause is None else CauseError(self.cause)
        return error
