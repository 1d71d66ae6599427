"""One of several replicas: its process from the launch to its death, and when it starts again."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from quire.errors import EngineDeadError, QuireError
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.engine_process.engine_wire import ReadStats
from quire.launch.engine_process.remote_core import RemoteCore
from quire.messages import (
    AdapterRef,
    Control,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    LoadAdapter,
    Started,
)
from quire.process.children.restart_times import RestartTimes
from quire.process.local.channel import Channel

SILENCE_S = 5.0  # after which a replica that owes a message is sent no new requests

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Times after which a replica is ended.

    Attributes:
        step_timeout_s: Time of a step, as the user set it.
        start_timeout_s: Time of a start, until it takes requests, as the user set it.
        own_watch_s: Time beyond it for an engine that watches its own workers. It reports first,
            and knows the rank that hangs, and where.
    """

    step_timeout_s: float = 300.0
    start_timeout_s: float = 600.0
    own_watch_s: float = 0.0

    @property
    def stall_s(self) -> float:
        """Time for a message that is owed."""
        return self.step_timeout_s + self.own_watch_s

    @property
    def start_s(self) -> float:
        """Time for a start."""
        return self.start_timeout_s + self.own_watch_s


class Replica:
    """An engine process that is launched again after its death.

    It is starting, then preparing (adapters are loaded), then up; after a death it pauses, or it
    stays down.

    Args:
        index: Index of the replica.
        launch: Function that launches its process; it takes the number of KV blocks that the
            process before had, None for the first one.
        limits: Times after which it is ended.

    Attributes:
        core: Engine core; None unless the replica is up.
        started: Properties of the engine that started last.
        stats: Latest statistics of the engine.
        incarnation: Number of times that it came up.
        next_start_s: Time of its next launch; None unless it pauses.
        owed_since_s: Time since which it owes a message and has sent none; None if it owes none.
            Only a message of its process changes it: after an abort a process that hangs owes
            nothing any more, and would look idle.
        start_by_s: Time at which it is ended unless it is up before; None unless it starts.
        last_error: Reason of its last death.
    """

    def __init__(
        self,
        index: int,
        launch: Callable[[int | None], EngineStart],
        limits: ReplicaLimits,
    ) -> None:
        self.index = index
        self.core: RemoteCore | None = None
        self.started = Started(0)
        self.stats = EngineStats()
        self.incarnation = 0
        self.next_start_s: float | None = None
        self.owed_since_s: float | None = None
        self.start_by_s: float | None = None
        self.last_error: BaseException | None = None
        self._launch = launch
        self._limits = limits
        self._start: EngineStart | None = None
        self._preparing: RemoteCore | None = None
        self._calls: dict[int, AdapterRef | None] = {}  # open while preparing; None: statistics
        self._questions: list[int] = []  # open calls for statistics, which are also signs of life
        self._restarts = RestartTimes()
        self._num_blocks: int | None = None

    @property
    def is_down(self) -> bool:
        """Whether it neither runs nor is started again."""
        is_starting = self._start is not None or self._preparing is not None
        return self.core is None and not is_starting and self.next_start_s is None

    @property
    def pid(self) -> int | None:
        """Process id; None if no process runs."""
        if self._start is not None:
            return self._start.link.pid
        core = self.core or self._preparing
        return None if core is None else core.pid

    @property
    def channel(self) -> Channel | None:
        """Channel to its process; None if no process runs."""
        if self._start is not None:
            return self._start.link.channel
        core = self.core or self._preparing
        return None if core is None else core.channel

    @property
    def stall_s(self) -> float | None:
        """Time at which it is ended unless a message arrives before; None if it owes none."""
        return None if self.owed_since_s is None else self.owed_since_s + self._limits.stall_s

    @property
    def silence_s(self) -> float | None:
        """Time from which it may hang unless a message arrives before; None if it owes none."""
        return None if self.owed_since_s is None else self.owed_since_s + SILENCE_S

    def is_silent(self, now_s: float) -> bool:
        """Whether it has owed a message for so long that it may hang."""
        return self.silence_s is not None and now_s >= self.silence_s

    @property
    def has_current_stats(self) -> bool:
        """Whether it has replied to each `ask_for_stats`, or died."""
        return not self._questions

    def launch(self, now_s: float) -> None:
        """Launch its process.

        Raises:
            QuireError: The process cannot be launched.
            OSError: The system has no memory or no process id for it.
        """
        self.next_start_s = None
        self._start = self._launch(self._num_blocks)
        self.start_by_s = now_s + self._limits.start_s

    def poll_start(self, adapters: Iterable[AdapterRef], now_s: float) -> bool:
        """Advance the start; return whether it has just come up. Never waits.

        Args:
            adapters: Adapters to load before it takes requests.
            now_s: Current time.

        Raises:
            QuireError: The engine cannot start, or its process died or takes too long.
        """
        is_up = self._advance_start(adapters)
        if is_up:
            self.start_by_s = None
        elif self.start_by_s is not None and now_s >= self.start_by_s:
            self._end_start()
        return is_up

    def prepare(self, adapter: AdapterRef) -> None:
        """Load an adapter before it takes requests; does nothing unless it is preparing."""
        if self._preparing is not None:
            self._calls[self._preparing.call(LoadAdapter(adapter))] = adapter

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Queue a request.

        Raises:
            RuntimeError: The replica is not up.
        """
        self._expect_answer(now_s).add(request)

    def ask_for_stats(self, now_s: float) -> None:
        """Ask for current statistics; `poll_step` takes the reply.

        Raises:
            EngineDeadError: It died.
            RuntimeError: The replica is not up.
        """
        self._questions.append(self._expect_answer(now_s).call(ReadStats()))

    def call(self, command: Control, now_s: float) -> int:
        """Send a command, as `RemoteCore.call` does.

        Raises:
            EngineDeadError: It died.
            RuntimeError: The replica is not up.
        """
        return self._expect_answer(now_s).call(command)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; nothing happens unless it is up."""
        if (core := self.core) is not None:
            core.abort(request_ids)
            with contextlib.suppress(EngineDeadError):  # noticed by the next poll
                self._ask_for_life(core)

    def poll_step(self, now_s: float) -> EngineOutputs | None:
        """Return the outputs of the next step if it is complete, else None; never waits.

        Raises:
            EngineDeadError: It died, or its step takes too long.
        """
        if (core := self.core) is None:
            return None
        num_received = core.num_received
        outputs = core.poll_step()
        if outputs is not None:
            self.stats = outputs.stats
        self._take_stats(core)
        if core.num_received != num_received:
            self.owed_since_s = now_s if _owes_message(core) else None
        elif outputs is None and self.stall_s is not None and now_s >= self.stall_s:
            self._end(core)
        self._ask_for_life(core)
        return outputs

    def bury(self, error: BaseException, now_s: float, *, may_restart: bool) -> None:
        """Record its death, and when it is launched again."""
        self.last_error = error
        self.core = self._start = self._preparing = None
        self._calls.clear()
        self._questions.clear()
        self.owed_since_s = self.start_by_s = None
        self.next_start_s = self._restarts.next_after(now_s) if may_restart else None

    def kill(self) -> None:
        """Kill its process; from any thread."""
        start, core = self._start, self.core or self._preparing
        if start is not None:
            start.link.kill()
        if core is not None:
            core.kill()

    def begin_shutdown(self) -> None:
        """Request its process to end after the running step."""
        if (core := self.core or self._preparing) is not None:
            core.begin_shutdown()

    def shutdown(self) -> None:
        """End its process. May be called twice."""
        if self._start is not None:
            self._start.close("the engine was shut down")
        if (core := self.core or self._preparing) is not None:
            core.shutdown()
        self.next_start_s = None

    def _expect_answer(self, now_s: float) -> RemoteCore:
        """Return the core, which has something to answer from now on."""
        if self.core is None:
            raise RuntimeError(f"replica {self.index} is not up and was sent a command")
        if self.owed_since_s is None:
            self.owed_since_s = now_s
        return self.core

    def _ask_for_life(self, core: RemoteCore) -> None:
        """Ask for a message if one was owed, and what was asked for is gone.

        Raises:
            EngineDeadError: It died.
        """
        if self.owed_since_s is not None and not _owes_message(core):
            self._questions.append(core.call(ReadStats()))

    def _take_stats(self, core: RemoteCore) -> None:
        """Take the statistics that were asked for, as far as they have arrived."""
        while self._questions and core.has_result(self._questions[0]):
            self.stats = core.result(self._questions.pop(0))

    def _end_start(self) -> NoReturn:
        """End the process, as it does not come up.

        Raises:
            EngineDeadError: Always.
        """
        reason = (
            f"its process {self.pid} was not ready for requests {self._limits.start_s:g} s after "
            "its launch, so it was ended; if a start takes that long here, raise "
            "worker_start_timeout_s"
        )
        if self._start is not None:
            self._start.close(reason)
        if self._preparing is not None:
            self._preparing.end(reason)
        raise EngineDeadError(f"replica {self.index}: {reason}")

    def _end(self, core: RemoteCore) -> NoReturn:
        """End the process, as it hangs.

        Raises:
            EngineDeadError: Always.
        """
        core.end(
            f"its process {core.pid} has sent nothing for {self._limits.stall_s:g} s, although a "
            "step or a command was due, so it was ended; if steps take that long here, raise "
            "step_timeout_s or lower max_num_batched_tokens"
        )

    def _advance_start(self, adapters: Iterable[AdapterRef]) -> bool:
        """Take what has arrived of the start; return whether it has just come up."""
        if self._start is not None:
            if (started := self._start.poll()) is None:
                return False
            self.started = started
            self._preparing, self._start = RemoteCore(self._start.link), None
            self._calls = {self._preparing.call(ReadStats()): None}
            for adapter in adapters:
                self.prepare(adapter)
        return self._finish_preparing()

    def _finish_preparing(self) -> bool:
        """Take the replies that have arrived; return whether all have."""
        core = self._preparing
        if core is None:
            return False
        core.poll_step()  # there are none, but replies are read
        for call_id in [call_id for call_id in self._calls if core.has_result(call_id)]:
            self._take_result(core, call_id, self._calls.pop(call_id))
        if self._calls:
            return False
        self.core, self._preparing = core, None
        self.incarnation += 1
        self._num_blocks = self.stats.num_blocks
        return True

    def _take_result(self, core: RemoteCore, call_id: int, adapter: AdapterRef | None) -> None:
        if adapter is None:
            self.stats = core.result(call_id)
            return
        try:
            core.result(call_id)
        except QuireError as error:
            logger.warning(
                "replica %d was started again and cannot load the adapter %r, so its requests with "
                "it will fail: %s",
                self.index,
                adapter.name,
                error,
            )


def _owes_message(core: RemoteCore) -> bool:
    """Whether a process has a request or a call to answer."""
    return core.has_work() or core.has_open_calls()
