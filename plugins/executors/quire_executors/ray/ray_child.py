"""Start of a program that the kernel kills when its parent dies: `ray_child PARENT PROGRAM ...`.

The parent is an actor of Ray, a process with many threads, in which no Python code may run between
fork and exec. So this module runs in the new process, and becomes the program. The kernel counts
the end of the thread that started it as the death of the parent; actors run in the main thread.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become a program that dies with its parent.

    Args:
        arguments: Process id of the parent, then the program with its arguments.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"the death of the parent cannot be watched: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(arguments[0]):
        sys.exit("the parent died before its child had started")
    os.execv(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
