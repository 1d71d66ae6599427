"""What the scheduler's half of the host-memory tier tells the worker's half, as msgpack."""

import msgspec


class BlockMove(msgspec.Struct, frozen=True, array_like=True):
    """Copy a column between its slot in host memory and its blocks."""

    slot: int
    block_hash: bytes
    block_ids: list[int]  # in each KV group; 0: nothing goes there


class TransferOrder(msgspec.Struct, frozen=True, array_like=True):
    """One transfer and all that it moves."""

    transfer_id: int
    moves: list[BlockMove]


class StepOrders(msgspec.Struct, array_like=True):
    """What is new since the last message."""

    loads: list[TransferOrder] = []
    saves: list[TransferOrder] = []
    lost: list[int] = []  # loads of what is not stored any more: to be reported as failed


def encode(orders: StepOrders) -> bytes:
    """Return the message; empty if there is nothing to say."""
    if not (orders.loads or orders.saves or orders.lost):
        return b""
    return msgspec.msgpack.encode(orders)


def decode(message: bytes) -> StepOrders:
    """Read a message.

    Raises:
        msgspec.DecodeError: It is none.
    """
    return msgspec.msgpack.decode(message, type=StepOrders) if message else StepOrders()
