"""Main loop of an engine process with several front ends.

A request belongs to the front end that has added it. No other can abort it or gets its outputs,
also if it uses the same id: that is refused. A front end that leaves, in order or by its death,
takes its requests with it, and nothing else. The outputs of a step go to each front end in one
message. Those without outputs receive the engine's load at intervals, and once it is idle.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.engine.core import EngineCore
from quire.engine.results import failed_output, report_of
from quire.errors import EngineDeadError, InvalidRequestError, QuireError
from quire.frontend.dispatch.backlog import Backlog
from quire.launch.engine_process.core_server import HEALTH_INTERVAL_S, reply_to
from quire.launch.engine_process.engine_wire import (
    Abort,
    Add,
    Call,
    CloseFrontEnd,
    Command,
    EncodedRequest,
    OpenFrontEnd,
    ReadStats,
    Shutdown,
)
from quire.launch.engine_process.front_end import PARENT, FrontEnd
from quire.messages import EngineOutput, EngineOutputs, SharedLoad, num_tokens_of
from quire.process.local.channel import Channel
from quire.process.local.channel_set import ChannelSet

logger = logging.getLogger(__name__)


class SharedCoreServer:
    """Server of one engine core for a parent process and its front ends.

    Args:
        core: Engine core that runs the steps.
        parent: Channel to the parent.
        backlog: Work of all front ends; empty.
    """

    def __init__(self, core: EngineCore, parent: Channel, backlog: Backlog) -> None:
        self._core = core
        self._front_ends = {PARENT: FrontEnd(PARENT, parent)}
        self._channels = ChannelSet()
        self._channels.replace([parent])
        self._owners: dict[str, int] = {}  # front ends by the ids of unfinished requests
        self._refused: defaultdict[int, list[EngineOutput]] = defaultdict(list)
        self._backlog = backlog
        self._done = SharedLoad()
        self._taken_s = 0.0
        self._is_stopping = False

    @property
    def channels(self) -> Sequence[Channel]:
        """The channels to all front ends."""
        return [each.channel for each in self._front_ends.values()]

    def serve(self) -> None:
        """Serve until the parent sends `Shutdown`; errors of a step are raised as they are.

        Raises:
            QuireError: The parent sent an invalid message, or a worker died.
        """
        while not self._is_stopping:
            if not self._has_work():
                self._report_idle()
                self._channels.wait(HEALTH_INTERVAL_S)
                self._core.check_health()
            self._apply_commands()
            if self._has_work() and not self._is_stopping:
                self._publish(self._core.step())

    def _has_work(self) -> bool:
        return bool(self._refused) or self._core.has_work()

    # -- commands ------------------------------------------------------------------------------

    def _apply_commands(self) -> None:
        for front_end in list(self._front_ends.values()):
            try:
                while self._is_known(front_end) and (command := front_end.take()) is not None:
                    self._apply(front_end, command)
            except QuireError as error:
                if front_end.number == PARENT:
                    raise
                self._forget(front_end, str(error))
        self._taken_s = time.monotonic()

    def _apply(self, front_end: FrontEnd, command: Any) -> None:
        match command:
            case Add():
                for encoded in command.requests:
                    self._add(front_end, encoded)
            case Abort():
                self._abort(front_end, command.request_ids)
            case Call():
                front_end.channel.send(
                    reply_to(command, lambda given: self._execute(front_end, given))
                )
            case Shutdown() if front_end.number == PARENT:
                self._is_stopping = True
            case Shutdown():
                self._forget(front_end, "it has ended in order")

    def _add(self, front_end: FrontEnd, encoded: EncodedRequest) -> None:
        try:
            request = encoded.request()
            if request.request_id in self._owners:
                raise InvalidRequestError(f"request id {request.request_id!r} is in use")
            self._core.add(request)
        except QuireError as error:
            output = failed_output(encoded.request_id, report_of(error))
            self._refused[front_end.number].append(output)
        else:
            self._owners[request.request_id] = front_end.number
            self._backlog.add([request])

    def _abort(self, front_end: FrontEnd, request_ids: Sequence[str]) -> None:
        """Abort those of the requests that are of this front end."""
        own = [each for each in request_ids if self._owners.get(each) == front_end.number]
        self._core.abort(own)
        self._backlog.remove(own)
        for request_id in own:
            del self._owners[request_id]
        for each in self._front_ends.values():
            each.is_behind = True

    def _execute(self, front_end: FrontEnd, command: Command) -> Any:
        """Execute a call; how many front ends there are is the parent's decision alone.

        Raises:
            QuireError: The call was refused, or failed.
        """
        match command:
            case ReadStats():
                return self._core.stats()
            case OpenFrontEnd() | CloseFrontEnd() if front_end.number != PARENT:
                raise QuireError("only the parent of an engine opens and closes its front ends")
            case OpenFrontEnd():
                return self._open(command)
            case CloseFrontEnd():
                return self._close(command.number)
            case _:
                return self._core.control(command)

    def _close(self, number: int) -> None:
        if (closed := self._front_ends.get(number)) is not None:
            self._forget(closed, "its process is gone")

    def _open(self, command: OpenFrontEnd) -> None:
        if command.number in self._front_ends:
            raise QuireError(f"there is a front end {command.number} already")
        self._front_ends[command.number] = FrontEnd.listening(command.number, command.address)
        self._channels.replace(self.channels)

    def _forget(self, front_end: FrontEnd, why: str) -> None:
        """Close a front end, with all its requests. May be called twice."""
        if not self._is_known(front_end):
            return
        del self._front_ends[front_end.number]
        owned = [each for each, number in self._owners.items() if number == front_end.number]
        logger.info("front end %d: %s; %d requests end", front_end.number, why, len(owned))
        self._refused.pop(front_end.number, None)
        self._abort(front_end, owned)
        front_end.channel.close()
        self._channels.replace(self.channels)

    def _is_known(self, front_end: FrontEnd) -> bool:
        """Whether a front end was not forgotten; another one may have its number by now."""
        return self._front_ends.get(front_end.number) is front_end

    # -- outputs -------------------------------------------------------------------------------

    def _publish(self, outputs: EngineOutputs) -> None:
        """Send the outputs of a step to their front ends."""
        self._count(outputs)
        hopeless = self._hopeless()
        by_owner, load, now_s = self._by_owner(outputs.outputs), self._load(), time.monotonic()
        for front_end in list(self._front_ends.values()):
            front_end.note_step(outputs.steps)
            own = by_owner.get(front_end.number, [])
            doomed = hopeless.get(front_end.number, [])
            if own or doomed or outputs.kv_events or front_end.is_due(now_s):
                is_parent = front_end.number == PARENT
                events = outputs.kv_events if is_parent else []
                own_load = msgspec.structs.replace(load, hopeless=doomed) if doomed else load
                told = EngineOutputs(own, outputs.stats, events, front_end.steps, own_load)
                self._tell(front_end, told, now_s)

    def _by_owner(self, outputs: Sequence[EngineOutput]) -> dict[int, list[EngineOutput]]:
        by_owner, self._refused = self._refused, defaultdict(list)
        for output in outputs:
            number = self._owners.get(output.request_id)
            if number is None:  # aborted while the step was running
                continue
            by_owner[number].append(output)
            if output.finish_reason is not None:
                del self._owners[output.request_id]
        return by_owner

    def _hopeless(self) -> dict[int, list[str]]:
        """Return the requests that could not end in their time, by front end."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for request_id in self._backlog.take_hopeless():
            if (number := self._owners.get(request_id)) is not None:
                found[number].append(request_id)
        return found

    def _report_idle(self) -> None:
        """Tell the front ends that nothing runs any more."""
        late = [each for each in self._front_ends.values() if each.is_due(math.inf)]
        if not late:
            return
        stats, load, now_s = self._core.stats(), self._load(), time.monotonic()
        for front_end in late:
            told = EngineOutputs([], stats, [], front_end.steps, load)
            self._tell(front_end, told, now_s)

    def _tell(self, front_end: FrontEnd, outputs: EngineOutputs, now_s: float) -> None:
        try:
            if front_end.channel.is_connected:
                front_end.tell(outputs, now_s)
        except EngineDeadError as error:
            if front_end.number == PARENT:
                raise
            self._forget(front_end, str(error))

    def _count(self, outputs: EngineOutputs) -> None:
        num_generated = sum(map(num_tokens_of, outputs.outputs))
        self._backlog.take(outputs, num_generated)
        done = self._done
        self._done = SharedLoad(
            num_steps=done.num_steps + 1,
            num_computed_tokens=done.num_computed_tokens + outputs.stats.num_scheduled_tokens,
            num_generated_tokens=done.num_generated_tokens + num_generated,
        )

    def _load(self) -> SharedLoad:
        done = self._done
        return msgspec.structs.replace(
            self._backlog.load(),
            taken_s=self._taken_s,
            num_steps=done.num_steps,
            num_computed_tokens=done.num_computed_tokens,
            num_generated_tokens=done.num_generated_tokens,
        )
