"""Replicas whose engine processes are threads with scripted cores, which can be killed."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from scripted_core import ScriptedCore, counting

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.errors import EngineDeadError, QuireError
from quire.launch.engine_process.engine_link import EngineLink
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.engine_process.engine_wire import (
    Connected,
    ErrorMessage,
    FromEngine,
    Ready,
    Refused,
    ToEngine,
)
from quire.launch.engine_process.served_engine import serve
from quire.launch.replicas.replica import Replica, ReplicaLimits
from quire.launch.replicas.replicated_core import ReplicatedCore
from quire.launch.replicas.routing.router import Router
from quire.messages import (
    AdapterRef,
    Control,
    EngineOutput,
    EngineOutputs,
    EngineStats,
    LoadAdapter,
    Started,
    StepStats,
)
from quire.process.children.child_process import SocketFolder
from quire.process.local.channel import Channel

BLOCK_SIZE = 4
LIMIT_S = 20.0


class MortalCore(ScriptedCore):
    """A scripted core that loads adapters, counts steps, and hangs once it is killed."""

    def __init__(self, step_s: float, **options: Any) -> None:
        super().__init__(counting, step_s=step_s, **options)
        self.adapters: list[AdapterRef] = []
        self.go = threading.Event()  # while it is not set, steps wait
        self.go.set()
        self.num_preemptions = 0
        self._started: set[str] = set()

    def step(self) -> EngineOutputs:
        self.go.wait(LIMIT_S)
        if self.is_dead:
            raise EngineDeadError("it is over")
        outputs = super().step()
        num_running = len(self.running)
        return msgspec.structs.replace(
            outputs,
            outputs=[self._with_start(output) for output in outputs.outputs],
            steps=[StepStats(num_running, num_running, self.step_s)] if num_running else [],
        )

    def _with_start(self, output: EngineOutput) -> EngineOutput:
        """Return an output that says when its request started, if it is the first one."""
        if output.request_id in self._started:
            return output
        self._started.add(output.request_id)
        return msgspec.structs.replace(output, started_s=time.monotonic())

    def control(self, command: Control) -> object:
        if isinstance(command, LoadAdapter) and command.adapter.path != "nowhere":
            self.adapters.append(command.adapter)
            return None
        return super().control(command)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_scheduled_tokens=len(self.running),
            num_blocks=100,
            num_preemptions=self.num_preemptions,
        )


class ReplicaThread:
    """A thread in place of an engine process; `die` is its SIGKILL."""

    def __init__(
        self, core: Any, address: str, refusal: QuireError | None, *, hangs: bool = False
    ) -> None:
        self.core = core
        self.pid = threading.get_native_id()
        self.refusal = refusal
        self._hangs = hangs
        self.num_kills = self.num_ends = 0
        self._channel = Channel(ToEngine, address, is_listening=False)
        self._death_fd, self._released_fd = os.eventfd(0), os.eventfd(0)
        self._channel.watch(self._released_fd)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def fileno(self) -> int:
        return self._death_fd

    def end(self, timeout_s: float) -> str:
        self.num_ends += 1
        if timeout_s and not self.num_kills:
            self._thread.join(timeout_s)
        return "was killed by SIGKILL" if self.num_kills else "ended with its thread"

    def kill(self) -> None:
        self.num_kills += 1
        self.core.go.clear()
        os.eventfd_write(self._death_fd, 1)

    def release(self) -> None:
        """Let a killed core end."""
        if isinstance(self.core, MortalCore):
            self.core.is_dead = True
            self.core.go.set()
            os.eventfd_write(self._released_fd, 1)

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        for fd in (self._death_fd, self._released_fd):
            os.close(fd)

    def _run(self) -> None:
        with suppress(EngineDeadError):  # the parent has left
            self._talk()
        self._channel.close(0.0 if self.num_kills else 1.0)  # no one reads after a death

    def _talk(self) -> None:
        self._channel.send(Connected())
        if self._hangs:
            self._channel.wait(LIMIT_S)
        elif self.refusal is not None:
            self._channel.send(Refused(ErrorMessage.of(self.refusal)))
        else:
            self._channel.send(Ready(Started(512)))
            serve(self.core, self._channel)


@dataclass
class Clock:
    """A clock that stands still."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class ReplicaTrial:
    """Replicas in threads, and all threads that were ever launched, by replica.

    `make_engine` makes other cores than mortal ones, and `refusals` are the errors of the next
    starts of each replica. Starts of the replicas in `hanging` never become ready.
    """

    num_replicas: int
    step_s: float = 0.0
    clock: Callable[[], float] = field(default_factory=Clock)
    request_timeout_s: float | None = None
    max_num_open: int = 1000
    limits: ReplicaLimits = field(default_factory=ReplicaLimits)
    make_engine: Callable[[], Any] | None = None
    threads: list[list[ReplicaThread]] = field(default_factory=list)
    refusals: dict[int, list[QuireError]] = field(default_factory=dict)
    sizes: list[int | None] = field(default_factory=list)
    hanging: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.threads = [[] for _ in range(self.num_replicas)]
        replicas = [
            Replica(index, self._launcher(index), self.limits) for index in range(self.num_replicas)
        ]
        self.router = Router(self.num_replicas, BlockHasher(BLOCK_SIZE, b""))
        self.core = ReplicatedCore(
            replicas, self.router, 1, self.request_timeout_s, self.max_num_open, self.clock
        )

    def current(self, index: int) -> ReplicaThread:
        """Return the thread of a replica's last start."""
        return self.threads[index][-1]

    def engine(self, index: int) -> MortalCore:
        """Return the scripted core of a replica's last start."""
        return self.current(index).core

    def close(self) -> None:
        for threads in self.threads:
            for thread in threads:
                thread.release()
        self.core.shutdown()
        for threads in self.threads:
            for thread in threads:
                thread.join()

    def _launcher(self, index: int) -> Callable[[int | None], EngineStart]:
        def launch(num_blocks: int | None) -> EngineStart:
            self.sizes.append(num_blocks)
            folder = SocketFolder()
            channel = Channel(FromEngine, folder.address, is_listening=True)
            refusals = self.refusals.get(index, [])
            refusal = refusals.pop(0) if refusals else None
            engine = self.make_engine() if self.make_engine else MortalCore(self.step_s)
            thread = ReplicaThread(engine, folder.address, refusal, hangs=index in self.hanging)
            self.threads[index].append(thread)
            return EngineStart(EngineLink(channel, thread, 0.0), folder)  # type: ignore[arg-type]

        return launch
