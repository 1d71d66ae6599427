"""The oracle sees what the pools hold, and what is on its way."""

from engine_parts import make_message
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.bench.cluster.exact_prefixes import ExactPrefixes
from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.cluster.virtual_replica import VirtualReplica
from quire.cli.bench.null_engine import EngineParts

PARTS = EngineParts.load()
PROMPTS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(1, 5)), max_size=12)


@given(PROMPTS)
def test_levels_are_what_the_pools_would_hit(requests):
    oracle = ExactPrefixes()
    replicas = [VirtualReplica(PARTS, 6, StepTime(), oracle.pool_of(i)) for i in range(2)]
    chains = []
    for number, (index, first, num_blocks) in enumerate(requests):
        prompt = [1] * 16 + [first] * (16 * (num_blocks - 1) + 1)
        message = make_message(str(number), prompt=prompt, max_tokens=1)
        hashes = replicas[index].add(message)
        oracle.expect(index, hashes)
        chains.append(hashes)
        while replicas[index].core.has_work():
            replicas[index].step()
        for chain in chains:
            held = {i: held_by(replica, chain) for i, replica in enumerate(replicas)}
            assert {i: oracle.num_held(i, chain) for i in held} == held
            depths = sorted({depth for depth in held.values() if depth}, reverse=True)
            assert [(depth, set(holders)) for depth, holders in oracle.levels(chain)] == [
                (depth, {i for i, found in held.items() if found >= depth}) for depth in depths
            ]
    oracle.forget(0)
    assert all(oracle.num_held(0, chain) == 0 for chain in chains)


def held_by(replica, chain):
    pool = replica.core.scheduler.kv.pool
    found = [pool.find(0, block) is not None for block in chain]
    return found.index(False) if False in found else len(found)


def test_what_is_on_its_way_counts_until_the_replica_dies():
    oracle = ExactPrefixes()
    replica = VirtualReplica(PARTS, 20, StepTime(), oracle.pool_of(0))
    hashes = replica.add(make_message("a", prompt=[1] * 40))
    oracle.expect(0, hashes)
    assert oracle.num_held(0, hashes) == 2
    oracle.start(0, 20)
    assert oracle.num_held(0, hashes) == 0
    assert list(oracle.levels(hashes)) == []


def test_blocks_behind_a_gap_are_of_no_use():
    oracle = ExactPrefixes()
    hashes = VirtualReplica(PARTS, 20, StepTime()).add(make_message("a", prompt=[1] * 64))
    oracle.expect(0, hashes[1:])
    oracle.expect(1, [hashes[0], hashes[2]])
    assert [oracle.num_held(replica, hashes) for replica in (0, 1)] == [0, 1]
    assert [(depth, set(holders)) for depth, holders in oracle.levels(hashes)] == [(1, {1})]
