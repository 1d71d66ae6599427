"""A tree of prefixes as a model of KV cache contents: equal nodes mean equal K and V.

A node stands for a prefix: an adapter's content, a cache salt, and tokens in order. The salt is
part of it although K and V do not depend on it, so that reads across salts are detected.
"""

from array import array
from hashlib import sha256

EOS = 0
OTHER_STOP = 4  # a token that some requests name as their end
VOCABULARY = 4  # tokens 1 ... 4 and EOS; few, so that requests have equal prefixes
SPREAD = 0x9E3779B97F4A7C15
WORD = 2**64 - 1


class KVContents:
    """Prefixes by node, with the hashes of their blocks and the tokens that a model would sample.

    Args:
        block_size: Number of tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._depths: list[int] = []
        self._states: list[int] = []
        self._names: dict[int, bytes] = {}
        self._blocks: dict[int, list[int]] = {}
        self._roots: dict[tuple[str, str | None], int] = {}
        self._children: dict[tuple[int, int], int] = {}

    def root(self, adapter: str, salt: str | None) -> int:
        """Return the empty prefix of an adapter's content ("": none) and a salt."""
        if (adapter, salt) not in self._roots:
            state = int.from_bytes(sha256(adapter.encode()).digest()[:8], "little")
            node = self._roots[adapter, salt] = self._add(-1, -1, 0, state)
            self._names[node] = _first_name(adapter, salt)
        return self._roots[adapter, salt]

    def child(self, node: int, token: int) -> int:
        """Return the prefix with one more token."""
        found = self._children.get((node, token))
        if found is None:
            state = ((self._states[node] ^ (token + 1)) * SPREAD) & WORD
            found = self._add(node, token, self._depths[node] + 1, state ^ (state >> 29))
            self._children[node, token] = found
        return found

    def path(self, node: int, token_ids: list[int]) -> list[int]:
        """Return the prefixes from a node through the tokens after it, that node first."""
        path = [node]
        for token in token_ids:
            path.append(self.child(path[-1], token))
        return path

    def sampled(self, node: int, child: int, forbidden: tuple[int, ...]) -> int:
        """Return the token that the model samples after a prefix, for one of n completions."""
        state = (self._states[node] + child * 7919) >> 7
        token = EOS if state % 41 == 0 else 1 + state % VOCABULARY
        return 1 + state % 3 if token in forbidden else token

    def block(self, node: int) -> list[int]:
        """Return the prefixes that end in the full block whose last token is that of the node."""
        if node not in self._blocks:
            found = [node]
            while len(found) < self.block_size:
                found.append(self._parents[found[-1]])
            self._blocks[node] = found[::-1]
        return self._blocks[node]

    def name(self, node: int) -> bytes:
        """Return the hash of the full block that ends at a node, computed from its tokens.

        Raises:
            AssertionError: No block ends at the node.
        """
        if node not in self._names:
            if self._depths[node] % self.block_size:
                raise AssertionError("the hash of a block that is not full was requested")
            block = self.block(node)
            before = self.name(self._parents[block[0]])
            tokens = array("i", [self._tokens[step] for step in block])
            self._names[node] = sha256(before + tokens.tobytes()).digest()
        return self._names[node]

    def _add(self, parent: int, token: int, depth: int, state: int) -> int:
        self._parents.append(parent)
        self._tokens.append(token)
        self._depths.append(depth)
        self._states.append(state)
        return len(self._parents) - 1


def _first_name(adapter: str, salt: str | None) -> bytes:
    """Return the parent hash of a first block, reimplemented from the engine's definition."""
    parts = [
        b"",
        f"adapter:{adapter}".encode() if adapter else b"",
        b"" if salt is None else b"salt" + salt.encode(),
    ]
    return sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).digest()
