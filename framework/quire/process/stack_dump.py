"""Stack dumps: SIGUSR1 makes a process of quire print the stacks of all its threads to stderr.

A process may also offer its stack to its parent, in memory that the parent reads.
"""

import faulthandler
import os
import signal
import sys

STACK_SIGNAL = signal.SIGUSR2  # makes a process write its stack to memory for its parent


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


def offer_stack() -> int:
    """Write the Python stacks of all threads to memory whenever this process gets `STACK_SIGNAL`.

    Returns:
        File descriptor of the memory, which another process of this user can open in /proc.
    """
    memory = os.memfd_create("quire-stack")
    faulthandler.register(STACK_SIGNAL, file=memory, all_threads=True)
    return memory
