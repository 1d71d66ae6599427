"""Where the engine's process begins: its parent is watched first, then it becomes an engine.

The config comes on the standard input, as msgpack. Nothing heavy is imported before the parent is
watched, so its death is never noticed late.
"""

import signal
import sys

from quire.process.watchdog import die_with, leave_to_parent


def main(arguments: list[str]) -> int:
    """Run an engine until the parent says stop, or is gone; returns the exit status.

    Args:
        arguments: The parent's process id, and the folder of its socket.
    """
    # Signals are for the parent, which stops us in order; its death is seen in another way.
    leave_to_parent(signal.SIGINT, signal.SIGTERM)
    die_with(int(arguments[0]), arguments[1])

    from quire.launch.engine_process.engine_wire import EngineConfig
    from quire.launch.engine_process.served_engine import run
    from quire.process.ipc import decode

    return run(decode(sys.stdin.buffer.read(), EngineConfig))
