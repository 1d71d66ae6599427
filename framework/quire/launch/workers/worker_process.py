"""Entry point of the process of a rank: start the watchdog of the engine, then run the worker.

The configuration arrives on the standard input as msgpack. Nothing heavy is imported before the
watchdog runs, so the death of the engine is always noticed at once.
"""

import signal
import sys

from quire.process.call_trace import trace_calls_if_asked
from quire.process.children.stack_dump import enable_stack_dumps, offer_stack
from quire.process.children.watchdog import die_with, leave_to_parent
from quire.process.garbage import pause_collections


def main(arguments: list[str]) -> int:
    """Run a worker until the engine stops it or dies; return the exit status.

    Args:
        arguments: Process id of the parent, which is the engine or an agent; and the folder of
            the engine's socket, if there is one, which is removed if the engine dies before it has
            removed it.
    """
    # The engine handles these signals and stops its workers; the watchdog sees its death.
    leave_to_parent(signal.SIGINT, signal.SIGTERM)
    pause_collections()
    enable_stack_dumps()
    trace_calls_if_asked()
    stack_fd = offer_stack()
    die_with(int(arguments[0]), *arguments[1:]).guard()

    from quire.launch.workers.worker_server import run
    from quire.launch.workers.worker_wire import WorkerConfig
    from quire.process.ipc import decode

    return run(decode(sys.stdin.buffer.read(), WorkerConfig), stack_fd)
