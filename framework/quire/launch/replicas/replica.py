"""One of several replicas: its process from the launch to its death, and when it starts again."""

import logging
from collections.abc import Callable, Iterable, Sequence

from quire.errors import QuireError
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.engine_process.engine_wire import ReadStats
from quire.launch.engine_process.remote_core import RemoteCore
from quire.launch.replicas.restarts import RestartTimes
from quire.messages import (
    AdapterRef,
    Control,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    LoadAdapter,
    Started,
)
from quire.process.ipc import Channel

STALL_LIMIT_S = 300.0  # of a step; a replica that takes longer is ended

logger = logging.getLogger(__name__)


class Replica:
    """An engine process that is launched again after its death.

    It is starting, then preparing (adapters are loaded), then up; after a death it pauses, or it
    stays down.

    Args:
        index: Index of the replica.
        launch: Function that launches its process; it takes the number of KV blocks that the
            process before had, None for the first one.

    Attributes:
        core: Engine core; None unless the replica is up.
        started: Properties of the engine that started last.
        stats: Latest statistics of the engine.
        incarnation: Number of times that it came up.
        next_start_s: Time of its next launch; None unless it pauses.
        stall_s: Time at which it is ended unless a step completes before; None while it is idle.
        last_error: Reason of its last death.
    """

    def __init__(self, index: int, launch: Callable[[int | None], EngineStart]) -> None:
        self.index = index
        self.core: RemoteCore | None = None
        self.started = Started(0)
        self.stats = EngineStats()
        self.incarnation = 0
        self.next_start_s: float | None = None
        self.stall_s: float | None = None
        self.last_error: BaseException | None = None
        self._launch = launch
        self._start: EngineStart | None = None
        self._preparing: RemoteCore | None = None
        self._calls: dict[int, AdapterRef | None] = {}  # open while preparing; None: statistics
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

    def launch(self) -> None:
        """Launch its process.

        Raises:
            QuireError: The process cannot be launched.
            OSError: The system has no memory or no process id for it.
        """
        self.next_start_s = None
        self._start = self._launch(self._num_blocks)

    def poll_start(self, adapters: Iterable[AdapterRef]) -> bool:
        """Advance the start; return whether it has just come up. Never waits.

        Args:
            adapters: Adapters to load before it takes requests.

        Raises:
            QuireError: The engine cannot start, or its process died.
        """
        if self._start is not None:
            if (started := self._start.poll()) is None:
                return False
            self.started = started
            self._preparing, self._start = RemoteCore(self._start.link), None
            self._calls = {self._preparing.call(ReadStats()): None}
            for adapter in adapters:
                self.prepare(adapter)
        return self._finish_preparing()

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

    def call(self, command: Control | ReadStats, now_s: float) -> int:
        """Send a command, as `RemoteCore.call` does.

        Raises:
            EngineDeadError: It died.
            RuntimeError: The replica is not up.
        """
        return self._expect_answer(now_s).call(command)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; nothing happens unless it is up."""
        if self.core is not None:
            self.core.abort(request_ids)

    def poll_step(self, now_s: float) -> EngineOutputs | None:
        """Return the outputs of the next step if it is complete, else None; never waits.

        Raises:
            EngineDeadError: It died, or its step takes too long.
        """
        if self.core is None:
            return None
        outputs = self.core.poll_step()
        if outputs is not None:
            self.stats = outputs.stats
        if not (self.core.has_work() or self.core.has_open_calls()):
            self.stall_s = None
        elif outputs is not None:
            self.stall_s = now_s + STALL_LIMIT_S
        elif self.stall_s is not None and now_s >= self.stall_s:
            self.core.end(
                f"a step did not complete within {STALL_LIMIT_S:g} s, so the process was ended; if "
                "steps take that long here, lower max_num_batched_tokens"
            )
        return outputs

    def bury(self, error: BaseException, now_s: float, *, may_restart: bool) -> None:
        """Record its death, and when it is launched again."""
        self.last_error = error
        self.core = self._start = self._preparing = None
        self._calls.clear()
        self.stall_s = None
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
        if self.stall_s is None:
            self.stall_s = now_s + STALL_LIMIT_S
        return self.core

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
