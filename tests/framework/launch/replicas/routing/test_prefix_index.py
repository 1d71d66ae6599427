"""The index of sent prompts equals a naive reference that keeps whole prefixes in a list."""

import msgspec
from engine_parts import make_message
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.launch.replicas.routing.prefix_index import PrefixIndex

BLOCK = 2
HASHER = BlockHasher(BLOCK, b"")
NUM_REPLICAS = 3
CHAINS = ([0] * 12, [0] * 4 + [1] * 8, [0] * 8 + [1] * 4, [1] * 12)
PROMPTS = st.builds(
    lambda chain, length: chain[:length], st.sampled_from(CHAINS), st.integers(0, 12)
)
REPLICAS = st.integers(0, NUM_REPLICAS - 1)


def hashes_of(tokens):
    hashes = [HASHER.start(make_message("a", prompt=tokens))]
    HASHER.extend(hashes, list(tokens), len(tokens) // BLOCK)
    return hashes[1:]


def prefixes_of(tokens):
    return [tuple(tokens[: BLOCK * (i + 1)]) for i in range(len(tokens) // BLOCK)]


class NaiveReplica:
    """A list of token prefixes, the least recently used first."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.held = []

    def touch(self, tokens):
        for prefix in reversed(prefixes_of(tokens)):
            if prefix in self.held:
                self.held.remove(prefix)
            self.held.append(prefix)
        del self.held[: max(0, len(self.held) - self.capacity)]

    def num_held(self, tokens):
        return max((len(p) // BLOCK for p in prefixes_of(tokens) if p in self.held), default=0)


class IndexMachine(RuleBasedStateMachine):
    """Replicas start, are sent prompts and die; lookups see what the reference has."""

    @initialize()
    def begin(self):
        self.index, self.naive = PrefixIndex(), {}

    @rule(replica=REPLICAS, capacity=st.integers(0, 6))
    def start(self, replica, capacity):
        self.index.start(replica, capacity)
        self.naive[replica] = NaiveReplica(capacity)

    @rule(replica=REPLICAS)
    def forget(self, replica):
        self.index.forget(replica)
        self.naive.pop(replica, None)

    @precondition(lambda self: self.naive)
    @rule(data=st.data(), tokens=PROMPTS)
    def touch(self, data, tokens):
        replica = data.draw(st.sampled_from(sorted(self.naive)))
        self.index.touch(replica, hashes_of(tokens))
        self.naive[replica].touch(tokens)

    @rule()
    def clear(self):
        self.index.clear()
        for naive in self.naive.values():
            naive.held.clear()

    @rule(tokens=PROMPTS)
    def look_up(self, tokens):
        hashes = hashes_of(tokens)
        expected = {r: naive.num_held(tokens) for r, naive in self.naive.items()}
        assert {r: self.index.num_held(r, hashes) for r in self.naive} == expected
        depths = sorted({depth for depth in expected.values() if depth}, reverse=True)
        assert [(depth, set(holders)) for depth, holders in self.index.levels(hashes)] == [
            (depth, {r for r, held in expected.items() if held >= depth}) for depth in depths
        ]

    @invariant()
    def no_more_is_kept_than_a_replica_can_hold(self):
        for replica, naive in getattr(self, "naive", {}).items():
            assert len(self.index._blocks[replica]) == len(naive.held) <= naive.capacity

    @invariant()
    def nothing_is_kept_of_prefixes_without_holders(self):
        held = {p for naive in getattr(self, "naive", {}).values() for p in naive.held}
        assert len(getattr(self, "index", PrefixIndex())._holders) == len(held)


TestPrefixIndex = IndexMachine.TestCase


@given(first=PROMPTS, second=PROMPTS)
def test_the_longer_part_of_a_prefix_goes_first(first, second):
    index = PrefixIndex()
    index.start(0, len(first) // BLOCK)
    index.touch(0, hashes_of(first))
    index.touch(0, hashes_of(second))
    held = index.num_held(0, hashes_of(second))
    assert held == min(len(second) // BLOCK, len(first) // BLOCK)


def test_another_adapter_or_salt_is_another_prefix():
    index = PrefixIndex()
    index.start(0, 8)
    plain = make_message("a", prompt=[1, 2, 3, 4])
    salted = msgspec.structs.replace(plain, cache_salt="x")
    others = [make_message("b", prompt=[1, 2, 3, 4], adapter="x"), salted]
    index.touch(0, [HASHER.start(plain)])
    for other in others:
        assert index.num_held(0, [HASHER.start(other)]) == 0
    assert index.num_held(0, [HASHER.start(plain)]) == 1
