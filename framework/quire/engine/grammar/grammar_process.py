"""The grammar fork server, and the grammar processes that compile one grammar each and match it.

The engine runs this module once, as the fork server. It loads the plugins and the vocabulary,
compiles nothing, and forks a process for each grammar. The child compiles under limits enforced by
the kernel (an alarm, an address space) and keeps the grammar's matchers, so a compiled grammar is
never serialized. Masks are written to a table in shared memory. The children die with the fork
server, and the fork server with the engine: when its socket closes and, on Linux, by a watchdog,
because the socket is not read while a backend is being built.
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import msgspec

from quire.config import PluginSettings
from quire.engine.grammar.grammar_wire import (
    ELAPSED_PER_CPU,
    Accept,
    Compiled,
    Drop,
    Failure,
    Fill,
    Kill,
    Operation,
    Setup,
    Spawn,
    Start,
    Turn,
    TurnDone,
    receive,
    receive_with_fds,
    send,
)
from quire.errors import GrammarError, QuireError
from quire.interfaces.structured_output import (
    CompiledGrammar,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from quire.plugins.loading import Registries, load_plugins
from quire.process.children.stack_dump import enable_stack_dumps
from quire.process.children.watchdog import Watchdog, die_with, leave_to_parent
from quire.process.traceback_text import sendable, traceback_text

REAP_INTERVAL_S = 1.0
COMPILE_NICENESS = 19  # 2 % of a core that the engine needs, all of one that it does not
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
        self._pids: dict[int, int] = {}  # grammar -> process not reaped yet

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
                command, fds = receive_with_fds(self._control, Spawn | Kill)
            except (EOFError, ConnectionError):
                return
            except msgspec.DecodeError as error:
                print(f"grammar process: cannot read a message: {error}", file=sys.stderr)
                continue  # the engine sees that the socket sent with it was closed
            if isinstance(command, Kill):
                self._kill(command.grammar)
            elif fds:
                self._spawn(command, socket.socket(fileno=fds[0]))

    def _spawn(self, command: Spawn, connection: socket.socket) -> None:
        with connection:
            parent = os.getpid()
            try:
                backends = {name: self._backend(name) for name in command.backends}
                pid = os.fork()
            except Exception as error:  # noqa: BLE001 - the edge of a plugin: it ends one request
                with contextlib.suppress(OSError):  # the engine has closed the socket
                    send(connection, Compiled(parent, _failure_of(error)))
                return
            if pid == 0:
                self._control.close()
                _die_with_parent(parent)
                _run_grammar(command, backends, connection, self._setup, self._masks)
            self._pids[command.grammar] = pid

    def _backend(self, name: str) -> StructuredOutputBackend:
        if name not in self._backends:
            self._backends[name] = self._registries.structured_output.get(name)(self._vocabulary)
            gc.freeze()
        return self._backends[name]

    def _kill(self, grammar: int) -> None:
        pid = self._pids.pop(grammar, None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # not reaped, so the pid cannot have been reused
            os.waitpid(pid, 0)

    def _reap(self) -> None:
        for grammar, pid in list(self._pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._pids[grammar]


def _run_grammar(
    command: Spawn,
    backends: Mapping[str, StructuredOutputBackend],
    connection: socket.socket,
    setup: Setup,
    masks: mmap.mmap,
) -> NoReturn:
    """Run the process of one grammar, and exit without the fork server's cleanup."""
    status = 1
    try:
        _limit_memory(setup.memory_limit_bytes)
        _silence_output()
        compiled = _compile(command, backends, connection)
        if compiled is not None:
            _MatcherServer(compiled, masks, len(masks) // setup.num_rows).serve(connection)
        status = 0
    except (EOFError, ConnectionError):
        status = 0
    finally:
        os._exit(status)


def _compile(
    command: Spawn, backends: Mapping[str, StructuredOutputBackend], connection: socket.socket
) -> CompiledGrammar | None:
    """Compile under alarms, whose default action ends the process wherever it is.

    The limit is of CPU time, so that a busy machine does not decide what compiles; a wait is
    limited too.

    It compiles in a thread, as only a thread can be nicer than the process that later fills masks:
    an unprivileged process cannot take its niceness back.
    """
    signal.setitimer(signal.ITIMER_PROF, command.timeout_s)
    signal.setitimer(signal.ITIMER_REAL, ELAPSED_PER_CPU * command.timeout_s)
    _, num_bytes = _memory_bytes()
    with ThreadPoolExecutor(1, initializer=_be_nice) as thread:
        compiled, failure = thread.submit(_compiled, command, backends).result()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    num_added_bytes = max(0, _memory_bytes()[1] - num_bytes)
    send(connection, Compiled(os.getpid(), failure, num_added_bytes))
    return compiled


def _be_nice() -> None:
    """Let other processes run first; elsewhere than on Linux, this thread is like any other."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPILE_NICENESS)


def _compiled(
    command: Spawn, backends: Mapping[str, StructuredOutputBackend]
) -> tuple[CompiledGrammar | None, Failure | None]:
    """Compile with the first backend that can."""
    refusals = []
    try:
        for name, backend in backends.items():
            try:
                backend.check(command.params)
                return backend.compile(command.params), None
            except GrammarError as error:
                refusals.append((name, error))
        raise joint_refusal(refusals)
    except Exception as caught:  # noqa: BLE001 - the edge of a plugin: it ends one request
        return None, _failure_of(caught)


def joint_refusal(refusals: Sequence[tuple[str, GrammarError]]) -> GrammarError:
    """Return the error of a constraint that each of several backends refuses."""
    first = refusals[0][1]
    if len(refusals) == 1:
        return first
    reasons = "; ".join(f"{name}: {error}" for name, error in refusals)
    return GrammarError(f"no backend can honour this constraint. {reasons}", param=first.param)


class _MatcherServer:
    """Serves the matchers of one grammar."""

    def __init__(self, grammar: CompiledGrammar, masks: mmap.mmap, row_bytes: int) -> None:
        self._grammar = grammar
        self._masks = memoryview(masks)
        self._row_bytes = row_bytes
        self._matchers: dict[int, Matcher] = {}

    def serve(self, connection: socket.socket) -> None:
        """Execute turns until the engine disconnects."""
        while True:
            turn = receive(connection, Turn)
            done = TurnDone({})
            for operation in turn.operations:
                if operation.matcher not in done.failed:
                    self._guarded(operation, done)
            send(connection, done)

    def _guarded(self, operation: Operation, done: TurnDone) -> None:
        try:
            self._execute(operation, done)
        except Exception as error:  # noqa: BLE001 - the edge of a plugin: it ends one request
            done.failed[operation.matcher] = _failure_of(error)

    def _execute(self, operation: Operation, done: TurnDone) -> None:
        key = operation.matcher
        match operation:
            case Start():
                self._matchers[key] = self._grammar.matcher()
            case Accept():
                self._accept(key, operation.token_ids, done)
            case Fill():
                start = operation.row * self._row_bytes
                self._matchers[key].fill_bitmask(self._masks[start : start + self._row_bytes])
            case Drop():
                self._matchers.pop(key, None)

    def _accept(self, key: int, token_ids: list[int], done: TurnDone) -> None:
        for token_id in token_ids:
            if not self._matchers[key].accept(token_id):
                done.failed[key] = Failure(f"the grammar does not allow token {token_id} here")
                return


def _failure_of(error: Exception) -> Failure:
    """Return the failure: our own errors are for the client, others for the log, in full."""
    if isinstance(error, MemoryError):
        return Failure("the grammar exceeds the memory limit of one grammar; make it simpler")
    if isinstance(error, QuireError):
        return Failure(sendable(str(error)))
    return Failure(traceback_text(error), is_for_client=False)


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
    enable_stack_dumps(keep_stderr=True)  # of the forked processes, which redirect theirs
    watchdog = die_with(engine_pid) if sys.platform == "linux" else None
    with socket.socket(fileno=control_fd) as control:
        # Mapped, not read: a fork server whose start was interrupted may still be reading the same
        # open file, and reading would move the offset that both share.
        with open(setup_fd, "rb"), mmap.mmap(setup_fd, 0, prot=mmap.PROT_READ) as packed:
            setup = msgspec.msgpack.decode(packed, type=Setup)
        ForkServer(control, setup, mmap.mmap(masks_fd, 0), watchdog).serve()
