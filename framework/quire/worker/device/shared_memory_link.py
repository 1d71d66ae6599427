"""Link between two pipeline stages on one machine: a ring of messages in shared memory."""

from __future__ import annotations

from ctypes import byref
from typing import Self

import torch
from torch import Tensor

from quire.errors import CollectiveError, SettingsError
from quire.interfaces.model import StageTensors
from quire.layers.parallel import StageLink
from quire.native.collectives.member import CONTROL_BYTES, SHARED_MEMORY, GroupMember
from quire.native.collectives.shared_segment import SegmentHandle, SharedSegment
from quire.worker.device.group_place import (
    Exchange,
    GroupPlace,
    StageShape,
    get_handle,
    set_handle,
)

HEADER = 64  # bytes before the tensors of a message: number of tokens and of tensors, as int64
SENDER, RECEIVER = 0, 1  # ranks of a link


class SharedMemoryLink(StageLink):
    """Link whose sender has rank 0 and whose receiver has rank 1.

    Args:
        segment: Shared memory of the link.
        place: Place of this rank.
        shape: Size of the messages, the same on both sides.
    """

    can_reset = True

    def __init__(self, segment: SharedSegment, place: GroupPlace, shape: StageShape) -> None:
        self._shape = shape
        self._place = place
        self._member = GroupMember(
            segment, place.rank, place.ranks, place.ranks_on_node, place.timeout_s, "message"
        )
        self._state = byref(self._member.state)
        self._library = self._member.library
        ring = torch.frombuffer(segment.memory, dtype=torch.uint8)[CONTROL_BYTES:]
        self._ring: Tensor | None = ring.view(shape.num_messages, -1)
        self._number = 0  # of the last message of this epoch

    @classmethod
    def join(cls, exchange: Exchange, key: str, place: GroupPlace, shape: StageShape) -> Self:
        """Create the link as its sender, or attach to it; its address is published under `key`.

        Raises:
            CapacityError: There is too little memory.
            CollectiveError: The sender does not create the link in time.
            NativeUnavailableError: The C++ code is not available on this machine.
            SettingsError: The memory of the sender cannot be opened.
        """
        SHARED_MEMORY.load()
        if place.rank == RECEIVER:
            return cls.attach(get_handle(exchange, key, place), place, shape)
        layout = _layout(place, shape)
        segment = SharedSegment.create(CONTROL_BYTES + layout[1] * layout[2], layout)
        set_handle(exchange, key, segment.handle)
        return cls(segment, place, shape)

    @classmethod
    def attach(cls, handle: SegmentHandle, place: GroupPlace, shape: StageShape) -> Self:
        """Attach to the link that its sender has created.

        Raises:
            SettingsError: Its memory cannot be opened, or is for messages of another size.
        """
        segment = SharedSegment.open(handle)
        if segment.layout[:3] != _layout(place, shape):
            segment.close()
            raise SettingsError(
                f"rank {place.ranks[SENDER]} sends messages of another size than rank "
                f"{place.ranks[RECEIVER]} expects; start both with the same settings"
            )
        return cls(segment, place, shape)

    def send(self, tensors: StageTensors) -> None:
        """Copy a step's tensors to the ring; waits while the ring is full.

        Raises:
            ValueError: The tensors are larger than the messages, or of another dtype.
        """
        parts = [tensors.hidden_states]
        if tensors.residual is not None:
            parts.append(tensors.residual)
        num_tokens = len(parts[0])
        self._shape.check(tensors)
        number = self._number + 1
        self._library.begin_message(self._state)
        if number > self._shape.num_messages:
            self._library.await_number(self._state, RECEIVER, number - self._shape.num_messages)
        message = self._message(number)
        _header(message).copy_(torch.tensor([num_tokens, len(parts)]))
        for room, part in zip(self._tensors(message, num_tokens, len(parts)), parts, strict=True):
            room.copy_(part)
        self._library.publish_number(self._state, number)
        self._number = number

    def receive(self, num_tokens: int) -> StageTensors:
        """Wait for the tensors of the next step, and copy them from the ring."""
        number = self._number + 1
        self._library.begin_message(self._state)
        self._library.await_number(self._state, SENDER, number)
        message = self._message(number)
        sent_tokens, num_parts = _header(message).tolist()
        if sent_tokens != num_tokens:
            self.abort()
            raise CollectiveError(
                f"message {number} from rank {self._place.ranks[SENDER]} has {sent_tokens} tokens, "
                f"and the step of rank {self._place.ranks[RECEIVER]} has {num_tokens}: the stages "
                "run different steps",
                ranks=self._place.ranks,
                count=number,
            )
        parts = [part.clone() for part in self._tensors(message, num_tokens, num_parts)]
        self._library.publish_number(self._state, number)
        self._number = number
        return StageTensors(parts[0], parts[1] if num_parts > 1 else None)

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""
        self._member.set_timeout(seconds)

    def abort(self) -> None:
        """Make the present and later calls of both ranks fail; may be called from any thread."""
        self._member.abort()

    def reset(self, epoch: int) -> None:
        """Make the link usable again, and empty, once neither rank is in a call."""
        self._member.reset(epoch)
        self._number = 0

    def close(self) -> None:
        """Leave the link; the calls of the other rank fail."""
        self._member.leave()
        self._ring = None
        self._member.close()

    def _message(self, number: int) -> Tensor:
        """Return the bytes of a message in the ring."""
        if self._ring is None:
            raise CollectiveError("the link was closed in the meantime")
        return self._ring[number % self._shape.num_messages]

    def _tensors(self, message: Tensor, num_tokens: int, num_parts: int) -> list[Tensor]:
        """Return a message's hidden states and, as a second part, its residual."""
        shape, room = self._shape, _tensor_bytes(self._shape)
        size = num_tokens * shape.hidden_size * shape.dtype.itemsize
        return [
            message[start : start + size].view(shape.dtype).view(num_tokens, shape.hidden_size)
            for start in range(HEADER, HEADER + num_parts * room, room)
        ]


def _header(message: Tensor) -> Tensor:
    """Return the numbers of tokens and of tensors in a message."""
    return message[:16].view(torch.int64)


def _layout(place: GroupPlace, shape: StageShape) -> tuple[int, int, int]:
    return place.size, HEADER + 2 * _tensor_bytes(shape), shape.num_messages


def _tensor_bytes(shape: StageShape) -> int:
    """Return the room for one tensor, in whole cache lines."""
    size = shape.max_num_tokens * shape.hidden_size * shape.dtype.itemsize
    return -(-size // 64) * 64
