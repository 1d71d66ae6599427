"""Stack dumps: SIGUSR1 makes a process of quire print the stacks of all its threads to stderr."""

import faulthandler
import os
import signal
import sys


def enable_stack_dumps(*, keep_stderr: bool = False) -> None:
    """Print the Python stacks of all threads to stderr whenever this process gets SIGUSR1.

    The signal's handler is C code that needs no interpreter, so it also answers while a kernel
    computes or a lock is held. The process goes on afterwards. Forks inherit the handler.

    Args:
        keep_stderr: Whether to print to the present stderr even if it is redirected later.
    """
    if sys.__stderr__ is None:
        return
    stderr = os.dup(sys.__stderr__.fileno()) if keep_stderr else sys.__stderr__
    faulthandler.register(signal.SIGUSR1, file=stderr, all_threads=True)
