"""The name of a full KV block is a hash of all that its content depends on.

    name(block i) = sha256(name(block i - 1) + the block's token ids)
    name(block -1) = sha256(root, adapter content, cache salt)

So equal names mean equal tokens from the first on, under the same model and adapter and for the
same salt. The names are made here and never taken from a client; sha256, because whoever could make
two contents collide could read another one's answer.
"""

from array import array
from hashlib import sha256

from quire.messages import EngineRequest


class BlockHasher:
    """Names blocks.

    Args:
        block_size: Tokens a block.
        root: What all KV of this engine depends on: weights, element type, layout.
    """

    def __init__(self, block_size: int, root: bytes) -> None:
        self.block_size = block_size
        self.root = root

    def start(self, message: EngineRequest) -> bytes:
        """Return the parent of a request's first block."""
        adapter = b"" if message.adapter is None else _adapter_content(message)
        salt = b"" if message.cache_salt is None else b"salt" + message.cache_salt.encode()
        digest = sha256()
        for part in (self.root, adapter, salt):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()

    def extend(self, hashes: list[bytes], token_ids: list[int], num_blocks: int) -> None:
        """Name further full blocks, up to `num_blocks` in all, in place.

        Args:
            hashes: The parent of the first block, then the names of the blocks.
            token_ids: All tokens of the request.
            num_blocks: Full blocks that are to have a name.
        """
        size = self.block_size
        for index in range(len(hashes) - 1, num_blocks):
            tokens = array("i", token_ids[index * size : (index + 1) * size])
            hashes.append(sha256(hashes[-1] + tokens.tobytes()).digest())


def _adapter_content(message: EngineRequest) -> bytes:
    """Return what tells one adapter from another: its content, or its path where none is known."""
    adapter = message.adapter
    if adapter is None:
        return b""
    return f"adapter:{adapter.content_hash or f'{adapter.name}:{adapter.path}'}".encode()
