"""Messages from the scheduler side of the host-memory tier to the worker side, as msgpack."""

import msgspec


class BlockMove(msgspec.Struct, frozen=True, array_like=True):
    """Copy of a cross-group block between its slot in host memory and its KV blocks."""

    slot: int
    block_hash: bytes
    block_ids: list[int]  # in each KV group; 0: not copied


class TransferOrder(msgspec.Struct, frozen=True, array_like=True):
    """One transfer with all its moves."""

    transfer_id: int
    moves: list[BlockMove]


class StepOrders(msgspec.Struct, array_like=True):
    """Transfers that are new since the last message."""

    loads: list[TransferOrder] = []
    saves: list[TransferOrder] = []
    lost: list[int] = []  # loads of evicted blocks, to be reported as failed


def encode(orders: StepOrders) -> bytes:
    """Return the message; empty if there are no orders."""
    if not (orders.loads or orders.saves or orders.lost):
        return b""
    return msgspec.msgpack.encode(orders)


def decode(message: bytes) -> StepOrders:
    """Decode a message.

    Raises:
        msgspec.DecodeError: The message is invalid.
    """
    return msgspec.msgpack.decode(message, type=StepOrders) if message else StepOrders()
