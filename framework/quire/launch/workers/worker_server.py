"""Main loop of the process of a rank: take the engine's messages in order, and answer each."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.errors import CollectiveError, EngineDeadError, QuireError, StepFailedError
from quire.frontend.dispatch.engine_client import death_by
from quire.interfaces.executor import StepRunner
from quire.launch.agreement import own_choices
from quire.launch.composing import Composed, compose_engine
from quire.launch.kv_memory import plan_memory
from quire.launch.torch_modules import defer_unused_modules
from quire.launch.workers.key_exchange import KeyExchange
from quire.launch.workers.worker_wire import (
    Allocate,
    Allocated,
    Completed,
    Execute,
    Halt,
    Halted,
    Joined,
    Launch,
    Loaded,
    LoadWeights,
    Resume,
    Resumed,
    Returned,
    Run,
    Sample,
    StepFailed,
    Stop,
    ToWorker,
    WorkerConfig,
    WorkerFailed,
    WorkerRefused,
)
from quire.messages import RankPlace, StepPlan
from quire.plugins.loading import load_plugins
from quire.process.error_message import ErrorMessage
from quire.process.garbage import leave_out_code, leave_out_engine
from quire.process.hub import HubChannel
from quire.process.launch_key import LaunchKey
from quire.process.local.local_channel import LocalChannel
from quire.process.log_lines import log_handler
from quire.process.network.network_channel import NetworkChannel

if TYPE_CHECKING:  # it loads torch
    from quire.worker.rank_worker import RankWorker

LINGER_S = 2.0  # time for the engine to read the last message
READY_POLL_S = 50e-6  # interval at which a device is asked for the end of a step

logger = logging.getLogger(__name__)


def run(config: WorkerConfig, stack_fd: int) -> int:
    """Join the engine, and serve it until it stops this process; return the exit status."""
    logging.basicConfig(level=config.log_level, handlers=[log_handler(f"worker {config.rank}")])
    try:
        channel = _connected(config)
    except QuireError as error:
        logger.critical("this worker cannot join the engine: %s", error)
        return 1
    try:
        composed = compose_engine(config.settings, load_plugins(config.settings.plugins))
    except BaseException as error:  # noqa: BLE001 - the edge of the process: sent to the engine
        _log(error)
        _send_last(channel, WorkerRefused(config.rank, ErrorMessage.of(error)))
        channel.close(LINGER_S)
        return 1
    channel.send(
        Joined(
            rank=config.rank,
            node=socket.gethostname(),
            pid=os.getpid(),
            choices=own_choices(composed.composition, is_local=config.key is None),
            stack_fd=stack_fd,
        )
    )
    was_stopped = serve(WorkerServer(composed, config.rank, channel), channel)
    channel.close(LINGER_S)
    return 0 if was_stopped else 1


def _connected(config: WorkerConfig) -> HubChannel:
    """Connect to the engine.

    Raises:
        QuireError: It cannot be reached in time, or has another key.
    """
    if config.key is None:
        return LocalChannel(ToWorker, config.address)
    channel = NetworkChannel(ToWorker, config.address, LaunchKey.from_text(config.key))
    try:
        channel.connect(config.settings.parallel.worker_start_timeout_s)
    except BaseException:
        channel.close()
        raise
    return channel


def serve(server: WorkerServer, channel: HubChannel) -> bool:
    """Serve the engine until it stops this process.

    Returns:
        True if the engine stopped it, False if the worker failed; the error is sent to the engine.
    """
    try:
        server.serve()
    except BaseException as error:  # noqa: BLE001 - the edge of the process: sent to the engine
        _log(error)
        _send_last(channel, server.report(error))
        return False
    finally:
        server.shutdown()
    return True


class WorkerServer:
    """Server of one worker for the engine.

    Args:
        composed: Composition, which is the engine's.
        rank: Rank of the worker.
        channel: Channel to the engine.
    """

    def __init__(self, composed: Composed, rank: int, channel: HubChannel) -> None:
        self._composed = composed
        self._rank = rank
        self._channel = channel
        self._worker: RankWorker | None = None
        self._is_halted = False
        self._runner: StepRunner | None = None
        self._sampled: deque[int] = deque()  # steps whose results are not sent yet

    def serve(self) -> None:
        """Serve until the engine sends `Stop`; errors of a step are raised as they are.

        Raises:
            EngineDeadError: The engine sent an invalid message.
        """
        while not isinstance(message := self._next(), Stop):
            self._handle(message)

    def shutdown(self) -> None:
        """Release all resources of the worker."""
        if self._worker is not None:
            self._worker.shutdown()

    def report(self, error: BaseException) -> WorkerFailed | WorkerRefused:
        """Return the message about an error that ends the worker.

        Before the first step, an error of this rank alone is the reason why the engine cannot be
        started; later, and if the rank only waited for another one, the engine looks for more.
        """
        failure = error if isinstance(error, QuireError) else death_by(error)
        knows_reason = not isinstance(failure, CollectiveError | EngineDeadError)
        if self._runner is None and knows_reason:
            return WorkerRefused(self._rank, ErrorMessage.of(failure))
        return WorkerFailed(ErrorMessage.of(failure))

    def _next(self) -> Any:
        """Return the next message; meanwhile send each result once the device has computed it.

        So the next step is launched while the device computes one, and no device is idle between
        two steps.
        """
        while self._sampled:
            plan_id = self._sampled[0]
            if self._running.is_ready(plan_id):
                self._sampled.popleft()
                self._compute(plan_id, partial(self._collect, plan_id))
            elif (message := self._channel.receive(0.0)) is not None:
                return message
            else:
                time.sleep(READY_POLL_S)
        return self._channel.receive()

    def _handle(self, message: Any) -> None:
        match message:
            case LoadWeights():
                self._load(message.places)
            case Allocate():
                self._allocate(message.kv_bytes)
            case Execute() | Launch() if self._is_halted:
                self._start_transfers(message.plan)
            case Execute():
                self._compute(message.plan.plan_id, lambda: self._running.execute(message.plan))
            case Sample():
                self._compute(message.plan_id, lambda: self._sample(message))
            case Launch():
                self._compute(message.plan.plan_id, lambda: self._launch(message))
            case Halt():
                self._halt()
                self._channel.send(Halted(self._loaded.can_resume))
            case Resume():
                self._is_halted = False
                self._loaded.resume(message.epoch)
                self._channel.send(Resumed())
            case Run():
                self._channel.send(self._returned(message))
            case _:
                raise EngineDeadError(f"the engine sent {message!r} unexpectedly")

    def _load(self, places: Sequence[RankPlace]) -> None:
        defer_unused_modules(self._composed)
        from quire.worker.parts import WorkerParts  # loads torch, after what must be set before it
        from quire.worker.rank_worker import make_worker

        settings, composition = self._composed.settings, self._composed.composition
        parts = WorkerParts.load(settings, composition, self._composed.plugins.registries)
        leave_out_code()
        exchange = KeyExchange(self._channel)
        self._worker = make_worker(settings, parts, self._rank, exchange, places)
        self._channel.send(Loaded(self._worker.worker.load()))

    def _allocate(self, kv_bytes: list[int]) -> None:
        composed = self._composed
        plans = plan_memory(
            composed.settings, composed.composition, composed.plugins.registries, kv_bytes
        )
        self._runner = self._loaded.worker.allocate(plans)
        self._loaded.set_timeout(composed.settings.parallel.step_timeout_s)
        leave_out_engine()  # so that collections during steps can skip it
        self._channel.send(Allocated(plans[0].num_blocks, plans[0].max_model_len))

    def _compute(self, plan_id: int, phase: Callable[[], None]) -> None:
        """Run a phase of a step unless this rank is halted; a failure is reported, and halts it."""
        if self._is_halted:
            return
        try:
            phase()
        except (StepFailedError, CollectiveError) as error:
            self._halt()
            self._loaded.abort()
            self._channel.send(_report(plan_id, error))

    def _start_transfers(self, plan: StepPlan) -> None:
        """Start the transfers of a plan and compute nothing, so that all ranks move the blocks."""
        has_new = plan.kv_transfers or plan.kv_loads or plan.kv_saves
        if has_new or plan.kv_resent or plan.stop_kv_store:
            self._running.execute(
                StepPlan(
                    plan_id=plan.plan_id,
                    requests=[],
                    kv_transfers=plan.kv_transfers,
                    kv_loads=plan.kv_loads,
                    kv_saves=plan.kv_saves,
                    kv_resent=plan.kv_resent,
                    kv_applied=plan.kv_applied,
                    stop_kv_store=plan.stop_kv_store,
                )
            )

    def _launch(self, message: Launch) -> None:
        self._running.launch(message.plan, message.masks)
        self._sampled.append(message.plan.plan_id)

    def _sample(self, message: Sample) -> None:
        self._running.sample(message.plan_id, message.masks)
        self._sampled.append(message.plan_id)

    def _collect(self, plan_id: int) -> None:
        self._channel.send(Completed(self._running.collect(plan_id)))

    def _halt(self) -> None:
        """Compute nothing until `Resume`, and drop the steps in flight."""
        self._is_halted = True
        self._sampled.clear()

    def _returned(self, message: Run) -> Returned:
        """Run a command; a `QuireError` becomes its result."""
        try:
            return Returned(message.call_id, self._running.control(message.command))
        except QuireError as error:
            return Returned(message.call_id, None, ErrorMessage.of(error))

    @property
    def _loaded(self) -> RankWorker:
        if self._worker is None:
            raise EngineDeadError("the engine asked for more before the weights were loaded")
        return self._worker

    @property
    def _running(self) -> StepRunner:
        if self._runner is None:
            raise EngineDeadError("the engine sent a step before the KV cache was allocated")
        return self._runner


def _report(plan_id: int, error: StepFailedError | CollectiveError) -> StepFailed:
    if isinstance(error, CollectiveError):
        return StepFailed(plan_id, None, {}, str(error))
    return StepFailed(plan_id, error.report, error.slots, str(error))


def _send_last(channel: HubChannel, message: WorkerFailed | WorkerRefused) -> None:
    """Send the error that ends this process, unless the engine itself is lost."""
    try:
        channel.send(message)
    except EngineDeadError as lost:
        logger.critical("this worker ends: %s", lost)


def _log(error: BaseException) -> None:
    if not isinstance(error, QuireError):
        logger.critical("the worker failed", exc_info=error)
