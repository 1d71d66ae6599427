"""One process a grammar: it compiles the grammar, then owns its matchers, and can be killed.

The engine starts this module once: the nursery. It loads the plugins and the vocabulary, compiles
nothing, and forks a process for each grammar. That one compiles under limits that the kernel keeps
(an alarm, an address space) and stays alive as the owner of the grammar's matchers, so a compiled
grammar never has to be sent anywhere. Masks go to a table in shared memory. All of them die with
the nursery, and that with the engine: by its socket and, on Linux, by a watchdog, as nobody reads
the socket while a backend is being built.
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
import traceback
from typing import NoReturn

import msgspec

from quire.config import PluginSettings
from quire.engine.grammar.grammar_wire import (
    Accept,
    Compiled,
    Drop,
    Failure,
    Fell,
    Fill,
    Operation,
    Rollback,
    Setup,
    Sprout,
    Start,
    Turn,
    TurnDone,
    receive,
    receive_with_fds,
    send,
)
from quire.errors import QuireError
from quire.interfaces.structured_output import (
    CompiledGrammar,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from quire.plugins.loading import Registries, load_plugins
from quire.process.watchdog import die_with, leave_to_parent

REAP_INTERVAL_S = 1.0
MAX_STORY_CHARACTERS = 8_000  # of an exception's traceback, for the log
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """Holds what grammar processes inherit, and starts and ends them."""

    def __init__(self, control: socket.socket, setup: Setup, masks: mmap.mmap) -> None:
        self._control = control
        self._setup = setup
        self._masks = masks
        self._registries: Registries = load_plugins(PluginSettings(**setup.plugins)).registries
        self._vocabulary: Vocabulary = setup.vocabulary.vocabulary()
        self._backends: dict[str, StructuredOutputBackend] = {}
        self._pids: dict[int, int] = {}  # grammar -> process that was not reaped yet

    def serve(self) -> None:
        """Follow the engine's orders until it hangs up."""
        gc.freeze()  # the children share these pages as long as nobody touches them
        while True:
            ready, _, _ = select.select([self._control], [], [], REAP_INTERVAL_S)
            self._reap()
            if not ready:
                continue
            try:
                order, fds = receive_with_fds(self._control, Sprout | Fell)
            except (EOFError, ConnectionError):
                return
            except msgspec.DecodeError as error:
                print(f"grammar process: an order cannot be read: {error}", file=sys.stderr)
                continue  # whoever waits for it sees that its socket was closed
            if isinstance(order, Fell):
                self._fell(order.grammar)
            elif fds:
                self._sprout(order, socket.socket(fileno=fds[0]))

    def _sprout(self, order: Sprout, connection: socket.socket) -> None:
        with connection:
            parent = os.getpid()
            try:
                backend = self._backend(order.backend)
                pid = os.fork()
            except Exception as error:  # noqa: BLE001 - the edge of a plugin: it ends one request
                with contextlib.suppress(OSError):  # nobody waits for it any more
                    send(connection, Compiled(parent, _explain(error)))
                return
            if pid == 0:
                self._control.close()
                _die_with(parent)
                _grow(order, backend, connection, self._setup, self._masks)
            self._pids[order.grammar] = pid

    def _backend(self, name: str) -> StructuredOutputBackend:
        if name not in self._backends:
            self._backends[name] = self._registries.structured_output.get(name)(self._vocabulary)
            gc.freeze()
        return self._backends[name]

    def _fell(self, grammar: int) -> None:
        pid = self._pids.pop(grammar, None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # not reaped, so the id is still its own
            os.waitpid(pid, 0)

    def _reap(self) -> None:
        for grammar, pid in list(self._pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._pids[grammar]


def _grow(
    order: Sprout,
    backend: StructuredOutputBackend,
    connection: socket.socket,
    setup: Setup,
    masks: mmap.mmap,
) -> NoReturn:
    """Live as the process of one grammar, and leave without running the nursery's own end."""
    status = 1
    try:
        _limit(setup.memory_limit_bytes)
        _be_silent()
        compiled = _compile(order, backend, connection)
        if compiled is not None:
            _Owner(compiled, masks, len(masks) // setup.num_rows).serve(connection)
        status = 0
    except (EOFError, ConnectionError):
        status = 0
    finally:
        os._exit(status)


def _compile(
    order: Sprout, backend: StructuredOutputBackend, connection: socket.socket
) -> CompiledGrammar | None:
    """Compile under the alarm, whose default action ends the process wherever it is."""
    signal.setitimer(signal.ITIMER_REAL, order.timeout_s)
    num_bytes = _num_resident_bytes()
    failure = None
    compiled = None
    try:
        backend.check(order.params)
        compiled = backend.compile(order.params)
    except Exception as caught:  # noqa: BLE001 - the edge of a plugin: it ends one request
        failure = _explain(caught)
    signal.setitimer(signal.ITIMER_REAL, 0)
    grown = max(0, _num_resident_bytes() - num_bytes)
    send(connection, Compiled(os.getpid(), failure, grown))
    return compiled


class _Owner:
    """The matchers of one grammar."""

    def __init__(self, grammar: CompiledGrammar, masks: mmap.mmap, row_bytes: int) -> None:
        self._grammar = grammar
        self._masks = memoryview(masks)
        self._row_bytes = row_bytes
        self._matchers: dict[int, Matcher] = {}

    def serve(self, connection: socket.socket) -> None:
        """Take turns until the engine hangs up."""
        while True:
            turn = receive(connection, Turn)
            done = TurnDone({}, [])
            for operation in turn.operations:
                if operation.matcher not in done.failed:
                    self._guarded(operation, done)
            send(connection, done)

    def _guarded(self, operation: Operation, done: TurnDone) -> None:
        try:
            self._carry_out(operation, done)
        except Exception as error:  # noqa: BLE001 - the edge of a plugin: it ends one request
            done.failed[operation.matcher] = _explain(error)

    def _carry_out(self, operation: Operation, done: TurnDone) -> None:
        key = operation.matcher
        match operation:
            case Start():
                self._matchers[key] = self._grammar.matcher()
            case Accept():
                self._accept(key, operation.token_ids, done)
            case Rollback():
                self._matchers[key].rollback(operation.num_tokens)
            case Fill():
                start = operation.row * self._row_bytes
                self._matchers[key].fill_bitmask(self._masks[start : start + self._row_bytes])
                if self._matchers[key].is_finished():
                    done.finished.append(key)
            case Drop():
                self._matchers.pop(key, None)

    def _accept(self, key: int, token_ids: list[int], done: TurnDone) -> None:
        for token_id in token_ids:
            if not self._matchers[key].accept(token_id):
                done.failed[key] = Failure(f"the grammar does not allow token {token_id} here")
                return


def _explain(error: Exception) -> Failure:
    """Our own errors are for the client; what else a plugin raises is for the log, in full."""
    if isinstance(error, MemoryError):
        return Failure("the grammar needs more memory than one grammar may have; make it simpler")
    if isinstance(error, QuireError):
        return Failure(str(error))
    story = "".join(traceback.format_exception(error))
    return Failure(story[-MAX_STORY_CHARACTERS:], is_for_client=False)


def _num_resident_bytes() -> int:
    """Return how much of this process lies in memory; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def _limit(memory_bytes: int) -> None:
    """Let this process grow by so much, and leave no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process when the nursery goes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _be_silent() -> None:
    """Send what a dying compiler prints to nowhere: clients must not be able to fill the log."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def main(arguments: list[str]) -> None:
    """Run the nursery.

    Args:
        arguments: The engine's process id, and file descriptors of the control socket, a file with
            the Setup, and the table of masks.
    """
    leave_to_parent(signal.SIGINT)  # Ctrl-C is for the engine, which hangs up
    engine_pid, control_fd, setup_fd, masks_fd = (int(argument) for argument in arguments)
    if sys.platform == "linux":
        die_with(engine_pid)
    with socket.socket(fileno=control_fd) as control:
        # Mapped, not read: a process whose start was interrupted may still be loading the same open
        # file, and reading would move the offset that both share.
        with open(setup_fd, "rb"), mmap.mmap(setup_fd, 0, prot=mmap.PROT_READ) as packed:
            setup = msgspec.msgpack.decode(packed, type=Setup)
        ForkServer(control, setup, mmap.mmap(masks_fd, 0)).serve()
