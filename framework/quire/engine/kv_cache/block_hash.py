"""The name of a full KV block is a hash of all that its content depends on.

    name(block i) = sha256(name(block i - 1) + the block's token ids + its media)
    name(block -1) = sha256(root, adapter content, cache salt)

So equal names mean equal tokens from the first on, under the same model and adapter and for the
same salt. The names are made here and never taken from a client; sha256, because whoever could make
two contents collide could read another one's answer.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256

from quire.errors import RequestFailedError
from quire.messages import AdapterRef, EngineRequest, MediaSpan


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
        """Return the parent of a request's first block.

        Raises:
            RequestFailedError: It names an adapter whose content nobody knows.
        """
        adapter = b"" if message.adapter is None else _adapter_content(message.adapter)
        salt = b"" if message.cache_salt is None else b"salt" + message.cache_salt.encode()
        digest = sha256()
        for part in (self.root, adapter, salt):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()

    def extend(
        self,
        hashes: list[bytes],
        token_ids: list[int],
        num_blocks: int,
        media: Sequence[MediaSpan] = (),
    ) -> None:
        """Name further full blocks, up to `num_blocks` in all, in place.

        Args:
            hashes: The parent of the first block, then the names of the blocks.
            token_ids: All tokens of the request.
            num_blocks: Full blocks that are to have a name.
            media: What stands behind placeholder tokens, which look alike for every image.
        """
        size = self.block_size
        for index in range(len(hashes) - 1, num_blocks):
            tokens = array("i", token_ids[index * size : (index + 1) * size]).tobytes()
            content = _media_content(media, index * size, size) if media else b""
            hashes.append(sha256(hashes[-1] + tokens + content).digest())


def _media_content(media: Sequence[MediaSpan], start: int, size: int) -> bytes:
    """Return which part of which media stands in a block."""
    parts = [
        f"{span.content_hash}@{span.position - start}"
        for span in media
        if span.position < start + size and start < span.position + span.length
    ]
    return " ".join(parts).encode()


def _adapter_content(adapter: AdapterRef) -> bytes:
    """Return what tells one adapter from another: its content alone, never its name or path.

    Raises:
        RequestFailedError: Nobody said what its content is.
    """
    if not adapter.content_hash:
        raise RequestFailedError(
            f"the adapter {adapter.name!r} has no content hash: what is computed with it could not "
            "be told from what another adapter of that name computes; see the LoRA source that "
            "found it, or serve without enable_prefix_caching"
        )
    return f"adapter:{adapter.content_hash}".encode()
