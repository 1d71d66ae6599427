"""The grammar fork server, and the processes that compile grammars and match them.

The engine runs this module once, as the fork server. It loads the plugins and the vocabulary,
compiles nothing, and forks a process for each grammar. The child compiles under limits enforced by
the kernel (an alarm, an address space), and says what that took. A grammar that its backend can
send then moves to the matcher process, another child, which compiles nothing and loads such
grammars. Any other grammar stays, and the child keeps its matchers. Masks are written to a table in
shared memory. The children die with the fork server, and the fork server with the engine: when its
socket closes and, on Linux, by a watchdog, because the socket is not read while a backend is being
built.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import msgspec

from quire.config import PluginSettings
from quire.engine.grammar.grammar_wire import (
    ELAPSED_PER_CPU,
    RUNNING,
    Compiled,
    Ended,
    Explain,
    Failure,
    Kill,
    Sendable,
    Setup,
    Spawn,
    SpawnMatcher,
    receive_with_fds,
    send,
)
from quire.engine.grammar.matcher_server import MatcherServer, failure_of
from quire.errors import GrammarError
from quire.interfaces.structured_output import (
    CompiledGrammar,
    StructuredOutputBackend,
    Vocabulary,
)
from quire.plugins.loading import Registries, load_plugins
from quire.process.call_trace import trace_calls_if_asked
from quire.process.children.stack_dump import enable_stack_dumps
from quire.process.children.watchdog import Watchdog, die_with, leave_to_parent

REAP_INTERVAL_S = 1.0
ENDING_S = 2.0  # for a process whose socket is closed to end
MAX_ENDED = 256  # processes whose status is kept
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """Holds the state that grammar processes inherit, and starts and kills them."""

    def __init__(
        self,
        control: socket.socket,
        setup: Setup,
        masks: mmap.mmap,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._control = control
        self._watchdog = watchdog
        self._setup = setup
        self._masks = masks
        self._registries: Registries = load_plugins(PluginSettings(**setup.plugins)).registries
        self._vocabulary: Vocabulary = setup.vocabulary.vocabulary()
        self._backends: dict[str, StructuredOutputBackend] = {}
        self._pids: dict[int, int] = {}  # by number, of processes that are not reaped yet
        self._statuses: dict[int, int] = {}  # by number, of those that ended, oldest first

    def serve(self) -> None:
        """Execute the engine's messages until it disconnects."""
        gc.freeze()  # the children share these pages as long as they are not written
        while True:
            ready, _, _ = select.select([self._control], [], [], REAP_INTERVAL_S)
            self._reap()
            if self._watchdog is not None:  # no thread watches it: one may not exist at a fork
                self._watchdog.replace_if_dead()
            if not ready:
                continue
            try:
                command, fds = receive_with_fds(
                    self._control, Spawn | SpawnMatcher | Kill | Explain
                )
            except (EOFError, ConnectionError):
                return
            except msgspec.DecodeError as error:
                print(f"grammar process: cannot read a message: {error}", file=sys.stderr)
                continue  # the engine sees that the socket sent with it was closed
            if isinstance(command, Kill):
                self._kill(command.process)
            elif fds and isinstance(command, Explain):
                self._explain(command.process, socket.socket(fileno=fds[0]))
            elif fds:
                self._spawn(command, socket.socket(fileno=fds[0]))

    def _spawn(self, command: Spawn | SpawnMatcher, connection: socket.socket) -> None:
        with connection:
            parent = os.getpid()
            try:
                backends = {name: self._backend(name) for name in command.backends}
                pid = os.fork()
            except Exception as error:  # noqa: BLE001 - the edge of a plugin: it ends one request
                with contextlib.suppress(OSError):  # the engine has closed the socket
                    send(connection, Compiled(parent, failure_of(error)))
                return
            if pid == 0:
                self._control.close()
                _die_with_parent(parent)
                _run(command, backends, connection, self._setup, self._masks)
            self._pids[command.process] = pid

    def _backend(self, name: str) -> StructuredOutputBackend:
        if name not in self._backends:
            self._backends[name] = self._registries.structured_output.get(name)(self._vocabulary)
            gc.freeze()
        return self._backends[name]

    def _kill(self, process: int) -> None:
        pid = self._pids.pop(process, None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # not reaped, so the pid cannot have been reused
            os.waitpid(pid, 0)

    def _explain(self, process: int, connection: socket.socket) -> None:
        """Send the status of a process, which has ended or is about to."""
        until = time.monotonic() + ENDING_S
        self._reap()
        while process in self._pids and time.monotonic() < until:
            time.sleep(0.002)
            self._reap()
        with connection, contextlib.suppress(OSError):  # the engine has closed the socket
            send(connection, Ended(self._statuses.get(process)))

    def _reap(self) -> None:
        for process, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[process]
                self._statuses[process] = os.waitstatus_to_exitcode(status)
        for oldest in list(self._statuses)[:-MAX_ENDED]:
            del self._statuses[oldest]


def _run(
    command: Spawn | SpawnMatcher,
    backends: Mapping[str, StructuredOutputBackend],
    connection: socket.socket,
    setup: Setup,
    masks: mmap.mmap,
) -> NoReturn:
    """Run a grammar process, and exit without the fork server's cleanup."""
    status = 1
    try:
        is_shared = isinstance(command, SpawnMatcher)
        _limit_memory(setup.shared_memory_limit_bytes if is_shared else setup.memory_limit_bytes)
        _silence_output()
        row_bytes = (len(masks) - RUNNING.size) // setup.num_rows
        server = MatcherServer(backends, masks, row_bytes, is_shared)
        if isinstance(command, Spawn):
            server.add(command.process, _compile(command, backends, connection))
        server.serve(connection)
        status = 0
    except (EOFError, ConnectionError, _NotCompiledError):
        status = 0
    finally:
        os._exit(status)


class _NotCompiledError(Exception):
    """A grammar could not be compiled; the engine knows why."""


def _compile(
    command: Spawn, backends: Mapping[str, StructuredOutputBackend], connection: socket.socket
) -> CompiledGrammar:
    """Compile under alarms, whose default action ends the process wherever it is.

    The limit is of CPU time, so that a busy machine does not decide what compiles; a wait is
    limited too.

    It compiles in a thread, as only a thread can be idle work in the process that later fills
    masks: an unprivileged process may not be allowed to take that back.

    Raises:
        _NotCompiledError: No backend could; the engine was told why.
    """
    signal.setitimer(signal.ITIMER_PROF, command.timeout_s)
    signal.setitimer(signal.ITIMER_REAL, ELAPSED_PER_CPU * command.timeout_s)
    _, num_bytes = _memory_bytes()
    started_s = time.process_time()
    with ThreadPoolExecutor(1, initializer=_be_idle) as thread:
        outcome = thread.submit(_compiled, command, backends).result()
    cpu_s = time.process_time() - started_s
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if isinstance(outcome, Failure):
        send(connection, Compiled(os.getpid(), outcome))
        raise _NotCompiledError
    compiled, sendable = outcome
    num_added_bytes = max(0, _memory_bytes()[1] - num_bytes)
    send(connection, Compiled(os.getpid(), None, num_added_bytes, cpu_s, sendable))
    return compiled


def _be_idle() -> None:
    """Leave the cores to whatever needs them; where the system lacks that, be like any thread.

    Work of the lowest niceness would do for throughput, but it keeps a thread that wakes up waiting
    for its slice of some milliseconds. Idle work gives way at once.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # of a sandbox
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))


def _compiled(
    command: Spawn, backends: Mapping[str, StructuredOutputBackend]
) -> tuple[CompiledGrammar, Sendable | None] | Failure:
    """Compile with the first backend that can, and pack the grammar if that can send it."""
    refusals = []
    try:
        for name, backend in backends.items():
            try:
                backend.check(command.params)
                compiled = backend.compile(command.params)
            except GrammarError as error:
                refusals.append((name, error))
                continue
            packed = compiled.packed()
            return compiled, None if packed is None else Sendable(name, packed)
        raise joint_refusal(refusals)
    except Exception as caught:  # noqa: BLE001 - the edge of a plugin: it ends one request
        return failure_of(caught)


def joint_refusal(refusals: Sequence[tuple[str, GrammarError]]) -> GrammarError:
    """Return the error of a constraint that each of several backends refuses."""
    first = refusals[0][1]
    if len(refusals) == 1:
        return first
    reasons = "; ".join(f"{name}: {error}" for name, error in refusals)
    return GrammarError(f"no backend can honour this constraint. {reasons}", param=first.param)


def _memory_bytes() -> tuple[int, int]:
    """Return the virtual and resident memory of this process; 0 where it is not reported."""
    if sys.platform != "linux":
        return 0, 0
    with open("/proc/self/statm") as statm:
        virtual, resident, *_ = (int(pages) for pages in statm.read().split())
    return virtual * resource.getpagesize(), resident * resource.getpagesize()


def _limit_memory(memory_bytes: int) -> None:
    """Limit the growth of this process to `memory_bytes`, and disable core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used, _ = _memory_bytes()
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the fork server dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _silence_output() -> None:
    """Redirect stdout and stderr to /dev/null: clients must not be able to fill the log."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, 1)
    os.dup2(null_fd, 2)


def main(arguments: list[str]) -> None:
    """Run the fork server.

    Args:
        arguments: Process id of the engine, and file descriptors of the control socket, of a file
            with the Setup, and of the table of masks.
    """
    leave_to_parent(signal.SIGINT)  # Ctrl-C is handled by the engine, which disconnects
    engine_pid, control_fd, setup_fd, masks_fd = (int(argument) for argument in arguments)
    trace_calls_if_asked()
    enable_stack_dumps(keep_stderr=True)  # of the forked processes, which redirect theirs
    watchdog = die_with(engine_pid) if sys.platform == "linux" else None
    with socket.socket(fileno=control_fd) as control:
        # Mapped, not read: a fork server whose start was interrupted may still be reading the same
        # open file, and reading would move the offset that both share.
        with open(setup_fd, "rb"), mmap.mmap(setup_fd, 0, prot=mmap.PROT_READ) as packed:
            setup = msgspec.msgpack.decode(packed, type=Setup)
        ForkServer(control, setup, mmap.mmap(masks_fd, 0), watchdog).serve()
