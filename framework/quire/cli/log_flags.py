"""Flags of every command for its log: the level, the format, and a trace of calls."""

import argparse
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from quire.cli.command_parser import CommandParser
from quire.config import ENVIRONMENT_PREFIX
from quire.errors import SettingsError, UsageError
from quire.process import call_trace, log_lines

LEVELS = ("debug", "info", "warning", "error", "critical")
LEVEL_VARIABLE = f"{ENVIRONMENT_PREFIX}LOG_LEVEL"


@dataclass(frozen=True, slots=True)
class LogFlags:
    """The log of a command.

    Attributes:
        level: Level from which messages are shown, as `logging` counts them.
    """

    level: int

    @classmethod
    def of(cls, arguments: argparse.Namespace, default_level: int) -> "LogFlags":
        """Read the flags, else the environment, and pass format and trace on to child processes.

        Args:
            arguments: Parsed arguments of a command.
            default_level: Level of the command.

        Raises:
            UsageError: A variable has another value than its flag may have.
            SettingsError: The folder of the trace cannot be written.
        """
        level = "error" if arguments.quiet else arguments.log_level
        level = level or _variable(LEVEL_VARIABLE, LEVELS)
        log_format = arguments.log_format or _variable(log_lines.VARIABLE, log_lines.FORMATS)
        if log_format is not None:
            os.environ[log_lines.VARIABLE] = log_format
        if arguments.trace_calls is not None:
            os.environ[call_trace.VARIABLE] = str(Path(arguments.trace_calls).absolute())
        _check_folder(os.environ.get(call_trace.VARIABLE))
        if level is None:
            return cls(default_level)
        return cls(logging.getLevelNamesMapping()[level.upper()])


def add_log_flags(parser: CommandParser) -> None:
    """Declare the flags."""
    section = parser.add_argument_group("log")
    levels = section.add_mutually_exclusive_group()
    levels.add_argument("--log-level", choices=LEVELS, help="least important messages to show")
    levels.add_argument("--quiet", action="store_true", help="show errors only")
    section.add_argument(
        "--log-format", choices=log_lines.FORMATS, help="text, or a JSON object a line"
    )
    section.add_argument(
        "--trace-calls",
        metavar="FILE",
        help="write each call to FILE.PID, of each process, to find a hang; very slow",
    )


def _variable(name: str, choices: tuple[str, ...]) -> str | None:
    value = os.environ.get(name)
    if value is None:
        return None
    if value.lower() not in choices:
        raise UsageError(
            f"{name} must be one of {', '.join(choices)}, got {value!r}",
            hint=f"set it to one of them, or unset {name}",
        )
    return value.lower()


def _check_folder(target: str | None) -> None:
    if target and not os.access(Path(target).parent, os.W_OK | os.X_OK):
        raise SettingsError(
            f"calls cannot be traced to {target}.PID: name a file in a folder that exists and can "
            "be written"
        )
