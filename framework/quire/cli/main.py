"""`quire <command>`: entry point, which turns errors into messages and exit statuses.

What is imported here can be interrupted with a traceback, so it is little.
"""

import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED, PIPE_CLOSED, WRONG_USAGE, FAILED = 130, 141, 2, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    It is 0, 1 for a `QuireError`, 2 for wrong usage, 130 after Ctrl-C, and 141 if the reader of a
    pipe is gone.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends what still closes
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe, `head` for example, is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _run(argv: Sequence[str]) -> int:
    from quire.cli.commands import run_command_line
    from quire.errors import AdapterError, QuireError, UsageError
    from quire.process.traceback_text import with_cause

    try:
        status = run_command_line(argv)
        sys.stdout.flush()
    except UsageError as error:
        print(f"quire: {error}\n{error.hint}", file=sys.stderr)
        return WRONG_USAGE
    except QuireError as error:
        message = with_cause(error) if isinstance(error, AdapterError) else str(error)
        headline, *details = message.splitlines() or [""]
        print(f"quire: {headline} [{error.code}]", *details, sep="\n", file=sys.stderr)
        return FAILED
    return status
