"""Hashes of full KV blocks, over everything that their content depends on.

    hash(block i) = sha256(hash(block i - 1) + the block's token ids + its media)
    hash(block -1) = sha256(root, adapter content, cache salt)

So equal hashes mean equal tokens from the first on, under the same model, adapter and salt. The
hashes are computed here and never taken from a client. They are sha256, because a client that could
construct a collision could read KV of another client's request.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256

from quire.errors import RequestFailedError
from quire.messages import AdapterRef, EngineRequest, MediaSpan


class BlockHasher:
    """Computes block hashes.

    Args:
        block_size: Number of tokens per block.
        root: Identity of everything that all KV of this engine depends on: weights, dtype, layout.
        num_bytes: Number of bytes of a hash; fewer than all only where equal hashes of different
            blocks do no harm.
    """

    def __init__(self, block_size: int, root: bytes, num_bytes: int = 32) -> None:
        self.block_size = block_size
        self.root = root
        self._num_bytes = num_bytes

    def start(self, message: EngineRequest) -> bytes:
        """Return the parent hash of a request's first block.

        Raises:
            RequestFailedError: The request's adapter has no content hash.
        """
        adapter = b"" if message.adapter is None else _adapter_content(message.adapter)
        salt = b"" if message.cache_salt is None else b"salt" + message.cache_salt.encode()
        digest = sha256()
        for part in (self.root, adapter, salt):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()[: self._num_bytes]

    def extend(
        self,
        hashes: list[bytes],
        token_ids: list[int],
        num_blocks: int,
        media: Sequence[MediaSpan] = (),
    ) -> None:
        """Append the hashes of further full blocks, up to `num_blocks` blocks in all.

        Args:
            hashes: Parent hash of the first block, then the hashes of the blocks; extended in
                place.
            token_ids: All tokens of the request.
            num_blocks: Number of full blocks to hash in all.
            media: Media behind placeholder tokens, whose ids are the same for every image.
        """
        size, num_bytes = self.block_size, self._num_bytes
        for index in range(len(hashes) - 1, num_blocks):
            tokens = array("i", token_ids[index * size : (index + 1) * size]).tobytes()
            content = _media_content(media, index * size, size) if media else b""
            hashes.append(sha256(hashes[-1] + tokens + content).digest()[:num_bytes])


def _media_content(media: Sequence[MediaSpan], start: int, size: int) -> bytes:
    """Return the media that overlap a block, with their offsets in it."""
    parts = [
        f"{span.content_hash}@{span.position - start}"
        for span in media
        if span.position < start + size and start < span.position + span.length
    ]
    return " ".join(parts).encode()


def _adapter_content(adapter: AdapterRef) -> bytes:
    """Return the identity of an adapter: its content hash, never its name or path.

    Raises:
        RequestFailedError: The adapter has no content hash.
    """
    if not adapter.content_hash:
        raise RequestFailedError(
            f"the adapter {adapter.name!r} has no content hash, so its cached prefixes could be "
            "confused with those of another adapter of that name; fix the LoRA source that found "
            "it, or serve without enable_prefix_caching"
        )
    return f"adapter:{adapter.content_hash}".encode()
