"""Reported caches are what the pools hold, and what is on its way."""

import pytest
from engine_parts import make_message
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.cluster.virtual_replica import VirtualReplica
from quire.cli.bench.null_engine import EngineParts
from quire.launch.replicas.routing.reported_prefixes import ReportedPrefixes
from quire.messages import BlocksRemoved, BlocksStored, CacheCleared

PARTS = EngineParts.load()
PROMPTS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(1, 5)), max_size=12)
CHAIN = [b"a", b"b", b"c", b"d"]


@pytest.fixture
def prefixes():
    made = ReportedPrefixes()
    for replica in range(2):
        made.start(replica, 4)
    return made


def stored(*hashes, group=0):
    return BlocksStored(
        group=group, hashes=list(hashes), parent=b"", position=0, token_ids=[], block_size=4
    )


def levels(prefixes, chain=CHAIN):
    return [(depth, set(holders)) for depth, holders in prefixes.levels(chain)]


@given(PROMPTS)
def test_levels_are_what_the_pools_would_hit(requests):
    prefixes = ReportedPrefixes()
    replicas = [VirtualReplica(PARTS, 6, StepTime(), reports_events=True) for _ in range(2)]
    for index in range(2):
        prefixes.start(index, 6)
    chains = []
    for number, (index, first, num_blocks) in enumerate(requests):
        prompt = [1] * 16 + [first] * (16 * (num_blocks - 1) + 1)
        core = replicas[index].core
        replicas[index].add(make_message(str(number), prompt=prompt, max_tokens=1))
        chains.append(core.scheduler.requests[str(number)].hashes[1:])
        prefixes.touch(index, chains[-1])
        while core.has_work():
            for batch in replicas[index].step()[1].kv_events:
                prefixes.apply(index, batch.events)
        for chain in chains:
            held = {i: held_by(replica, chain) for i, replica in enumerate(replicas)}
            assert {i: prefixes.num_held(i, chain) for i in held} == held
            depths = sorted({depth for depth in held.values() if depth}, reverse=True)
            assert levels(prefixes, chain) == [
                (depth, {i for i, found in held.items() if found >= depth}) for depth in depths
            ]
    prefixes.forget(0)
    assert all(prefixes.num_held(0, chain) == 0 for chain in chains)


def held_by(replica, chain):
    pool = replica.core.scheduler.kv.pool
    found = [pool.find(0, block) is not None for block in chain]
    return found.index(False) if False in found else len(found)


def test_what_is_on_its_way_counts_until_the_replica_dies(prefixes):
    prefixes.touch(0, CHAIN[:2])
    assert prefixes.num_held(0, CHAIN) == 2
    prefixes.start(0, 4)
    assert prefixes.num_held(0, CHAIN) == 0
    assert levels(prefixes) == []


def test_what_was_on_its_way_and_is_removed_is_gone(prefixes):
    prefixes.touch(0, CHAIN)
    prefixes.apply(0, [stored(*CHAIN), BlocksRemoved(0, CHAIN[1:])])
    assert prefixes.num_held(0, CHAIN) == 1
    prefixes.touch(0, CHAIN)  # sent again before it is known to be gone from there
    prefixes.apply(0, [BlocksRemoved(0, CHAIN[:1])])
    assert prefixes.num_held(0, CHAIN) == 0


def test_of_what_is_never_reported_the_oldest_is_forgotten(prefixes):
    prefixes.apply(0, [stored(b"x", b"y")])
    prefixes.touch(0, CHAIN)
    prefixes.touch(0, [b"e", b"f"])
    assert [prefixes.num_held(0, [block]) for block in (*CHAIN, b"e", b"f")] == [0, 0, 1, 1, 1, 1]
    assert prefixes.num_held(0, [b"x", b"y"]) == 2


def test_a_block_is_held_until_the_last_group_removes_it(prefixes):
    prefixes.apply(0, [stored(b"a"), stored(b"a", group=1), BlocksRemoved(1, [b"a"])])
    assert prefixes.num_held(0, CHAIN) == 1
    prefixes.apply(0, [BlocksRemoved(0, [b"a"])])
    assert prefixes.num_held(0, CHAIN) == 0


def test_a_snapshot_replaces_what_was_reported_and_keeps_what_is_on_its_way(prefixes):
    prefixes.apply(0, [stored(*CHAIN)])
    prefixes.touch(0, [b"x"])
    prefixes.replace(0, [b"a"])
    assert prefixes.num_held(0, CHAIN) == 1
    assert prefixes.num_held(0, [b"x"]) == 1
    prefixes.apply(0, [CacheCleared()])
    assert prefixes.num_held(0, [b"x"]) == prefixes.num_held(0, CHAIN) == 0


def test_a_reset_of_all_leaves_the_replicas(prefixes):
    prefixes.apply(0, [stored(*CHAIN)])
    prefixes.forget(1)
    prefixes.clear()
    assert levels(prefixes) == []
    prefixes.touch(0, CHAIN)
    assert prefixes.num_held(0, CHAIN) == 4


def test_blocks_behind_a_gap_are_of_no_use(prefixes):
    prefixes.touch(0, CHAIN[1:])
    prefixes.touch(1, [CHAIN[0], CHAIN[2]])
    assert [prefixes.num_held(replica, CHAIN) for replica in (0, 1)] == [0, 1]
    assert levels(prefixes) == [(1, {1})]
