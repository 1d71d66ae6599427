"""The engine's half: it steps as long as there is work, and sends one message a step.

Commands are taken between two steps, all that have come by then. A command that is refused with an
error of ours gets that as its answer; any other error, as all of a step's, ends the engine.
"""

from typing import Any

import msgspec

from quire.engine.core import EngineCore
from quire.errors import InvalidRequestError, QuireError
from quire.launch.engine_process.engine_wire import (
    Abort,
    Add,
    Call,
    EncodedRequest,
    ErrorMessage,
    ReadStats,
    Reply,
    Shutdown,
    Stepped,
)
from quire.messages import (
    Control,
    EngineOutput,
    EngineOutputs,
    ErrorReport,
)
from quire.process.ipc import Channel, encode

HEALTH_INTERVAL_S = 0.5  # how often an idle engine looks after its workers


class CoreServer:
    """Serves one core to one parent.

    Args:
        core: The engine.
        channel: The way to the parent.
    """

    def __init__(self, core: EngineCore, channel: Channel) -> None:
        self._core = core
        self._channel = channel
        self._refused: list[EngineOutput] = []
        self._num_taken = 0
        self._is_stopping = False

    def serve(self) -> None:
        """Serve until the parent says stop; raises what a step raises.

        Raises:
            EngineDeadError: The parent sent what is no command, or a worker died.
        """
        while not self._is_stopping:
            if not self._has_work():
                self._channel.wait(HEALTH_INTERVAL_S)
                self._core.check_health()
            self._take_commands()
            if self._has_work() and not self._is_stopping:
                self._channel.send(Stepped(self._step(), self._num_taken))

    def _has_work(self) -> bool:
        return bool(self._refused) or self._core.has_work()

    def _step(self) -> EngineOutputs:
        outputs = self._core.step()
        if not self._refused:
            return outputs
        refused, self._refused = self._refused, []
        return EngineOutputs([*refused, *outputs.outputs], outputs.stats)

    def _take_commands(self) -> None:
        while (command := self._channel.take()) is not None:
            self._num_taken += 1
            match command:
                case Add():
                    for encoded in command.requests:
                        self._add(encoded)
                case Abort():
                    self._core.abort(command.request_ids)
                case Call():
                    self._channel.send(self._answer(command))
                case Shutdown():
                    self._is_stopping = True

    def _add(self, encoded: EncodedRequest) -> None:
        try:
            self._core.add(encoded.request())
        except QuireError as error:
            report = ErrorReport(InvalidRequestError.code, str(error))
            output = EngineOutput(
                request_id=encoded.request_id, token_ids=[], finish_reason="error", error=report
            )
            self._refused.append(output)

    def _answer(self, call: Call) -> Reply:
        """Do what is asked; a refusal is for the one who asked."""
        try:
            value = encode(self._do(call.command))
        except QuireError as error:
            return Reply(call.call_id, _NOTHING, ErrorMessage.of(error))
        return Reply(call.call_id, msgspec.Raw(value))

    def _do(self, command: Control | ReadStats) -> Any:
        return self._core.stats() if isinstance(command, ReadStats) else self._core.control(command)


_NOTHING = msgspec.Raw(encode(None))
