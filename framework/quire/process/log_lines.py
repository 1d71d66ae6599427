"""Lines of a log in which no text of a client begins a line, or reaches a terminal as a command.

A message may quote a model name, an exception or a plugin's text. Control characters and marks of
the writing direction are escaped, and all lines of a record but its first are indented.
"""

import logging
import sys

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
_MARKS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
_ESCAPES = _CONTROLS | {code: f"\\u{code:04x}" for code in _MARKS}
_INDENT = "\n    "


class LineFormatter(logging.Formatter):
    """A formatter of records, each of which has one line that is not indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return one_record(super().format(record))


def one_record(text: str) -> str:
    """Return a text with control characters escaped, and all lines but the first indented."""
    return text if text.isprintable() else text.translate(_ESCAPES).replace("\n", _INDENT)


def log_handler(line_format: str) -> logging.Handler:
    """Return a handler that writes records to standard error.

    Args:
        line_format: Format of a line, as for `logging.Formatter`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(line_format))
    return handler
