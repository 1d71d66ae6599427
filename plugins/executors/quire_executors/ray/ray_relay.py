"""Process between an actor and its `quire worker`, so that the second outlives the first.

Ray kills the children of an actor that ends, and ends all actors a minute after its head is gone,
though the model can still be served. So the program is a child of this process, in a session of its
own, and this process ends as the program does. The program ends with the engine that it has joined;
one that cannot, because it is stopped, is killed on SIGUSR1.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

KILL = signal.SIGUSR1


def main(command: Sequence[str]) -> int:
    """Run a program; return its exit status, or end by the signal that it was killed by."""
    program = subprocess.Popen(command, start_new_session=True)
    signal.signal(KILL, lambda *_: _kill(program.pid))
    code = program.wait()
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _kill(session: int) -> None:
    """Kill the program with all that it has started, which is its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
