"""Entry point of the engine process: start the watchdog of the parent, then run the engine.

The configuration arrives on the standard input as msgpack. Nothing heavy is imported before the
watchdog runs, so the death of the parent is always noticed at once.
"""

import signal
import sys

from quire.process.call_trace import trace_calls_if_asked
from quire.process.children.stack_dump import enable_stack_dumps
from quire.process.children.watchdog import die_with, leave_to_parent
from quire.process.garbage import pause_collections


def main(arguments: list[str]) -> int:
    """Run an engine until the parent stops it or dies; return the exit status.

    Args:
        arguments: Process id of the parent, and the folder of its socket.
    """
    # The parent handles these signals and shuts the engine down; the watchdog sees its death.
    leave_to_parent(signal.SIGINT, signal.SIGTERM)
    pause_collections()
    enable_stack_dumps()
    trace_calls_if_asked()
    die_with(int(arguments[0]), arguments[1]).guard()

    from quire.launch.engine_process.engine_wire import EngineConfig
    from quire.launch.engine_process.served_engine import run
    from quire.process.ipc import decode

    config = sys.stdin.buffer.read()  # the parent may compose meanwhile
    return run(decode(config, EngineConfig)) if config else 0  # nothing: it needs no engine
