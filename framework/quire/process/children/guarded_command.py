"""A program of others as a child: it and all that it starts die with the process that started it.

The child is a Python process that leads its group; it forks the watchdog, and becomes the program.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from quire.process.children.python_child import python_arguments
from quire.process.children.watchdog import die_with


def guarded_arguments(command: Sequence[str]) -> list[str]:
    """Return the command line that runs a program; it must be started in a new session."""
    return [sys.executable, *python_arguments(__name__, [str(os.getpid()), *command])]


def main(arguments: list[str]) -> NoReturn:
    """Become a program.

    Args:
        arguments: Process id of the parent, the program, and its arguments.
    """
    die_with(int(arguments[0]))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would, too
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(arguments[1], arguments[1:])
    except OSError as error:
        sys.exit(f"{arguments[1]}: {error.strerror}")
