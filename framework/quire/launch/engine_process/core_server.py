"""Main loop of the engine process: apply commands, run steps, send one message per step.

All commands that have arrived are applied between two steps. A command that raises a `QuireError`
gets it as its reply; any other error, and every error of a step, ends the engine.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quire.engine.core import EngineCore
from quire.engine.results import failed_output, report_of
from quire.errors import QuireError
from quire.launch.engine_process.engine_wire import (
    Abort,
    Add,
    Call,
    CloseFrontEnd,
    Command,
    EncodedRequest,
    OpenFrontEnd,
    ReadStats,
    Reply,
    Shutdown,
    Stepped,
)
from quire.messages import EngineOutput, EngineOutputs
from quire.process.error_message import ErrorMessage
from quire.process.ipc import encode
from quire.process.local.channel import Channel

HEALTH_INTERVAL_S = 0.5  # interval of the worker health checks of an idle engine


class CoreServer:
    """Server of one engine core for one parent process.

    Args:
        core: Engine core that runs the steps.
        channel: Channel to the parent.
    """

    def __init__(self, core: EngineCore, channel: Channel) -> None:
        self._core = core
        self._channel = channel
        self._refused: list[EngineOutput] = []
        self._num_taken = 0
        self._is_stopping = False

    @property
    def channels(self) -> Sequence[Channel]:
        """The channel to the parent."""
        return [self._channel]

    def serve(self) -> None:
        """Serve until the parent sends `Shutdown`; errors of a step are raised as they are.

        Raises:
            EngineDeadError: The parent sent an invalid message, or a worker died.
        """
        while not self._is_stopping:
            if not self._has_work():
                self._channel.wait(HEALTH_INTERVAL_S)
                self._core.check_health()
            self._apply_commands()
            if self._has_work() and not self._is_stopping:
                self._channel.send(Stepped(self._step(), self._num_taken))

    def _has_work(self) -> bool:
        return bool(self._refused) or self._core.has_work()

    def _step(self) -> EngineOutputs:
        outputs = self._core.step()
        if not self._refused:
            return outputs
        refused, self._refused = self._refused, []
        return msgspec.structs.replace(outputs, outputs=[*refused, *outputs.outputs])

    def _apply_commands(self) -> None:
        while (command := self._channel.take()) is not None:
            self._num_taken += 1
            match command:
                case Add():
                    for encoded in command.requests:
                        self._add(encoded)
                case Abort():
                    self._core.abort(command.request_ids)
                case Call():
                    self._channel.send(reply_to(command, self._execute))
                case Shutdown():
                    self._is_stopping = True

    def _add(self, encoded: EncodedRequest) -> None:
        try:
            self._core.add(encoded.request())
        except QuireError as error:
            self._refused.append(failed_output(encoded.request_id, report_of(error)))

    def _execute(self, command: Command) -> Any:
        match command:
            case ReadStats():
                return self._core.stats()
            case OpenFrontEnd() | CloseFrontEnd():
                raise QuireError("this engine was started for one front end")
            case _:
                return self._core.control(command)


def reply_to(call: Call, execute: Callable[[Command], Any]) -> Reply:
    """Execute a call; a `QuireError` becomes its reply."""
    try:
        value = encode(execute(call.command))
    except QuireError as error:
        return Reply(call.call_id, _NOTHING, ErrorMessage.of(error))
    return Reply(call.call_id, msgspec.Raw(value))


_NOTHING = msgspec.Raw(encode(None))
