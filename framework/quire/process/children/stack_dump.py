"""Stack dumps: SIGUSR1 makes a process of quire print the stacks of all its threads to stderr.

A process may also offer its stack to its parent, in memory that the parent reads.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR2  # makes a process write its stack to memory for its parent
STACK_WAIT_S = 0.3  # time for a process to write its stack
MAX_STACK_BYTES = 8 * 1024
STOPPED_STATES = ("T", "t")


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


def process_state(pid: int, stack_fd: int | None) -> str:
    """Describe what a process of this user is doing while it does not answer, for people.

    Args:
        pid: Process id on this machine.
        stack_fd: What `offer_stack` returned there; None if it is not known.
    """
    if _is_stopped(pid):
        return "it is stopped by a signal (SIGSTOP or a debugger)"
    if stack_fd is None:
        return "it has not joined; look at its log"
    stack = _stack(pid, stack_fd)
    return f"its stack is\n{stack}" if stack else "its stack cannot be read"


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] in STOPPED_STATES
    return False


def _stack(pid: int, stack_fd: int) -> str:
    """Make a process write its stack, and return the end of what it has written."""
    with contextlib.suppress(OSError):
        os.kill(pid, STACK_SIGNAL)
        time.sleep(STACK_WAIT_S)
        text = Path(f"/proc/{pid}/fd/{stack_fd}").read_bytes()
        return text[-MAX_STACK_BYTES:].decode("utf-8", "replace").strip()
    return ""
