"""Lines of a log in which no text of a client begins a line, or reaches a terminal as a command.

A message may quote a model name, an exception or a plugin's text. Control characters and marks of
the writing direction are escaped, and all lines of a record but its first are indented. As JSON, a
record is one line of printable ASCII.
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime

from quire.config import ENVIRONMENT_PREFIX

VARIABLE = f"{ENVIRONMENT_PREFIX}LOG_FORMAT"  # also read by child processes
FORMATS = ("text", "json")
TEXT_FORMAT = "%(asctime)s %(levelname)s {process}%(name)s: %(message)s"

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
_MARKS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
_ESCAPES = _CONTROLS | {code: f"\\u{code:04x}" for code in _MARKS}
_INDENT = "\n    "
_SHOW_URLS = ("httpcore2", "httpx2", "mcp")  # libraries whose lines have addresses with secrets


class LineFormatter(logging.Formatter):
    """A formatter of records, each of which has one line that is not indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return one_record(super().format(record))


def one_record(text: str) -> str:
    """Return a text with control characters escaped, and all lines but the first indented."""
    return text if text.isprintable() else text.translate(_ESCAPES).replace("\n", _INDENT)


class JSONFormatter(logging.Formatter):
    """A formatter of records as JSON objects.

    Args:
        process: Name of the process; empty for the one that the user started.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if self._process:
            fields["process"] = self._process
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True)


def log_handler(process: str = "") -> logging.Handler:
    """Return a handler that writes records to standard error, in the format of the environment.

    Args:
        process: Name of a child process, for its lines.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_shown)
    if os.environ.get(VARIABLE) == "json":
        handler.setFormatter(JSONFormatter(process))
    else:
        shown = process.replace("%", "%%") + " " if process else ""
        handler.setFormatter(LineFormatter(TEXT_FORMAT.format(process=shown)))
    return handler


def _is_shown(record: logging.LogRecord) -> bool:
    is_ours = record.name.split(".")[0] not in _SHOW_URLS
    return is_ours or record.levelno >= logging.WARNING
