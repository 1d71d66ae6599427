"""Entry point of a process that serves HTTP: start the watchdog of the parent, then serve.

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
    """Serve until the parent stops this process or dies; return the exit status.

    Args:
        arguments: Process id of the parent.
    """
    # The parent handles these signals, and lets its processes drain; the watchdog sees its death.
    leave_to_parent(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    enable_stack_dumps()
    trace_calls_if_asked()
    die_with(int(arguments[0])).guard()
    pause_collections()

    from quire.cli.api_servers.front_end_config import FrontEndConfig
    from quire.cli.api_servers.front_end_process import run
    from quire.process.ipc import decode

    return run(decode(sys.stdin.buffer.read(), FrontEndConfig))
