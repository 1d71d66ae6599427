"""A front end as the engine's process sees it: its channel, and what it was told."""

from collections.abc import Sequence
from typing import Any

from quire.errors import EngineDeadError
from quire.launch.engine_process.engine_wire import Stepped, ToEngine
from quire.messages import EngineOutputs, StepStats
from quire.process.local.channel import Channel

PARENT = 0  # number of the process that started the engine
REPORT_INTERVAL_S = 0.1  # between two messages to a front end without outputs


class FrontEnd:
    """One of the front ends of an engine.

    Args:
        number: Its number; 0 is the parent.
        channel: Channel to it, which may not be connected yet.

    Attributes:
        number: Its number.
        channel: Channel to it.
        num_taken: Number of its commands that were applied.
        is_behind: Whether there was a step since its last message.
        steps: Steps that were not sent to it; only the parent receives them.
    """

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.num_taken = 0
        self.is_behind = True
        self.steps: list[StepStats] = []
        self._told_s = 0.0

    @classmethod
    def listening(cls, number: int, address: str) -> "FrontEnd":
        """Return a front end that will connect to an address.

        Raises:
            QuireError: The address cannot be listened on.
        """
        return cls(number, Channel(ToEngine, address, is_listening=True))

    def take(self) -> Any:
        """Return its next command; None if there is none.

        Raises:
            EngineDeadError: It sent an invalid message, or has left.
        """
        if (command := self.channel.take()) is not None:
            self.num_taken += 1
        elif self.channel.has_ended:
            raise EngineDeadError("it has disconnected")
        return command

    def note_step(self, steps: Sequence[StepStats]) -> None:
        """Note that a step is complete."""
        self.is_behind = True
        if self.number == PARENT:
            self.steps += steps

    def is_due(self, now_s: float) -> bool:
        """Whether to send it a step without outputs for it.

        One that does not read what it was told is not told more, so it cannot fill the memory.
        """
        is_free = self.channel.is_connected and not self.channel.has_unsent
        return is_free and self.is_behind and now_s - self._told_s >= REPORT_INTERVAL_S

    def tell(self, outputs: EngineOutputs, now_s: float) -> None:
        """Send it the outputs of a step.

        Raises:
            EngineDeadError: It has left.
        """
        self.channel.send(Stepped(outputs, self.num_taken))
        self.is_behind, self.steps, self._told_s = False, [], now_s
