"""Link between two pipeline stages over torch.distributed."""

from __future__ import annotations

from collections import deque
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from quire.interfaces.model import StageTensors
from quire.layers.parallel import StageLink
from quire.worker.device.group_place import Exchange, GroupPlace, StageShape
from quire.worker.device.process_group import ProcessGroup
from quire.worker.device.rendezvous import Rendezvous

SENDER, RECEIVER = 0, 1  # ranks of a link
NUM_PARTS, TENSORS = 0, 1  # tags; that of a message is TENSORS and its number of tokens


class DistributedLink(StageLink):
    """Link whose sender has rank 0 and whose receiver has rank 1.

    A message is one tensor. Whether it has a residual is sent once, before the first one. With
    Gloo, a message of another number of tokens than the receiver expects never arrives.

    Args:
        connections: Connection of the two ranks.
        shape: Size of the messages.
        device: Device of the tensors.
    """

    def __init__(self, connections: ProcessGroup, shape: StageShape, device: torch.device) -> None:
        self.can_reset = connections.can_reset
        self._connections = connections
        self._shape = shape
        self._device = device
        self._num_parts = 0  # unknown
        self._header = torch.zeros(1, dtype=torch.int64, device=device)
        self._announcement: dist.Work | None = None  # of the header; kept, or it is not sent
        self._sent: deque[tuple[dist.Work, Tensor]] = deque()  # messages that may not have arrived

    @classmethod
    def join(
        cls,
        exchange: Exchange,
        key: str,
        place: GroupPlace,
        shape: StageShape,
        device: torch.device,
        interface_address: str,
    ) -> Self:
        """Connect the two ranks, which both call this function with the same key.

        Args:
            exchange: Exchange of the launch, through which addresses are published.
            key: Name of the link, unique in the launch.
            place: Place of this rank.
            shape: Size of the messages.
            device: Device of the tensors.
            interface_address: IP address of the interface that this rank listens on.

        Raises:
            CollectiveError: The other rank does not come in time, or cannot be reached.
            SettingsError: The address is not one of this machine's interfaces.
        """
        rendezvous = Rendezvous(
            exchange=exchange,
            key=key,
            place=place,
            device=device,
            interface_address=interface_address,
        )
        return cls(ProcessGroup(rendezvous, "message"), shape, device)

    def send(self, tensors: StageTensors) -> None:
        """Begin to send a step's tensors; waits while the receiver has too many to receive.

        Raises:
            ValueError: There is a residual, and was none in the first message, or the reverse; or
                the tensors are larger than the messages, or of another dtype.
        """
        self._shape.check(tensors)
        parts = [tensors.hidden_states]
        if tensors.residual is not None:
            parts.append(tensors.residual)
        if self._num_parts not in (0, len(parts)):
            raise ValueError("all messages of a stage must have a residual, or none")
        message = torch.stack(parts)
        with self._connections.call() as backend:
            if not self._num_parts:
                self._num_parts = len(parts)
                self._header.fill_(len(parts))
                self._announcement = backend.send([self._header], RECEIVER, NUM_PARTS)
            if len(self._sent) == self._shape.num_messages:
                self._connections.wait_for_message(self._sent.popleft()[0])
            tag = TENSORS + message.shape[1]
            self._sent.append((backend.send([message], RECEIVER, tag), message))

    def receive(self, num_tokens: int) -> StageTensors:
        """Wait for the tensors of the next step."""
        with self._connections.call() as backend:
            if not self._num_parts:
                self._connections.wait_for_message(backend.recv([self._header], SENDER, NUM_PARTS))
                self._num_parts = int(self._header)
            size = (self._num_parts, num_tokens, self._shape.hidden_size)
            message = torch.empty(size, dtype=self._shape.dtype, device=self._device)
            tag = TENSORS + num_tokens
            self._connections.wait_for_message(backend.recv([message], SENDER, tag))
        hidden_states, *residual = message.unbind()
        return StageTensors(hidden_states, residual[0] if residual else None)

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""
        self._connections.set_timeout(seconds)

    def abort(self) -> None:
        """Make later calls of this rank fail, and with Gloo those of the other."""
        self._drop_messages()
        self._connections.abort()

    def reset(self, epoch: int) -> None:
        """Make the link usable again, and empty, once neither rank is in a call; both call it.

        Raises:
            QuireError: The link cannot be reset, or the other rank does not come in time.
        """
        if not self.can_reset:
            super().reset(epoch)
        self._drop_messages()
        self._connections.reset(epoch)
        self._num_parts = 0

    def close(self) -> None:
        """Close the connection; the calls of the other rank fail."""
        self._drop_messages()
        self._connections.close()

    def _drop_messages(self) -> None:
        """Forget what is being sent, which keeps the connection."""
        self._sent.clear()
        self._announcement = None
