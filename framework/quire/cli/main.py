"""`quire <command>`: entry point, which turns errors into messages and exit statuses.

What is imported here can be interrupted with a traceback, so it is little.
"""

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED, PIPE_CLOSED, WRONG_USAGE, FAILED = 130, 141, 2, 1
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    It is 0, 1 for a `QuireError`, 2 for wrong usage, 130 after Ctrl-C, and 141 if the reader of a
    pipe is gone.
    """
    try:
        _prepare_streams()
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends what still closes
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe, `head` for example, is gone
        _discard_output()
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        _discard_output()
        target = error.filename or "the output"
        print(
            f"quire: {target} cannot be written: {error.strerror} [output_failed]", file=sys.stderr
        )
        return FAILED


def _prepare_streams() -> None:
    """Open the output streams that were closed at the start, and let them write any character."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # no other file may take its place
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open to the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Leave nothing in the buffer that the interpreter would fail to write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
