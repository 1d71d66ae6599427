"""Signals that stop a server, handled in its event loop."""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

# A terminal that is closed sends SIGHUP, and so do some process managers.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT) + (
    () if sys.platform == "win32" else (signal.SIGHUP,)
)


@contextlib.contextmanager
def signals_handled(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function on the running event loop for each signal that stops; the main thread only.

    SIGHUP stays ignored where it is, as under `nohup`. SIGINT does not: a shell lets commands in
    the background ignore it. The handlers from before are restored at
    the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    handled = [
        signum
        for signum in STOP_SIGNALS
        if before[signum] is not signal.SIG_IGN or signum in (signal.SIGTERM, signal.SIGINT)
    ]
    for signum in handled:
        loop.add_signal_handler(signum, partial(on_signal, signum))
    try:
        yield
    finally:
        for signum in handled:
            loop.remove_signal_handler(signum)
            signal.signal(signum, before[signum])
