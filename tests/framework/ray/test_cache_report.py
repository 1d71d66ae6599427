"""A router that reads reports, of which it misses some, knows what a replica has cached."""

import msgspec
from engine_parts import make_message
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.cluster.virtual_replica import ROOT, VirtualReplica
from quire.cli.bench.null_engine import EngineParts
from quire.engine.kv_cache.block_hash import BlockHasher
from quire.messages import BlocksRemoved, BlocksStored, CacheCleared, KVEventBatch, ResetPrefixCache
from quire.ray.cache_report import HASH_BYTES, NUM_WHOLE, WHOLE_EVERY, WINDOW_S, CacheReport
from quire.ray.prompt_reader import PromptTokens, as_request, owner_of
from quire.ray.serve_routing import ReplicaFacts, ReplicaLoad, ServeRouting

PARTS = EngineParts.load()
SIZE = 16
FACTS = ReplicaFacts(SIZE, 6, reports_changes=True)
SALTS = (None, "alice")


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class Scene:
    """A replica, its reports, and a router that reads some of them."""

    def __init__(self):
        self.clock = Clock()
        self.engine = VirtualReplica(PARTS, 6, StepTime(), reports_events=True)
        self.report = CacheReport(SIZE, self.clock)
        for _ in range(NUM_WHOLE - 1):
            self.report.report()
        self.routing = ServeRouting(self.clock)
        self.routing.update({"a": FACTS})
        self.num_requests = self.num_reports = 0

    def compute(self, first, num_blocks, salt=None):
        self.num_requests += 1
        self.engine.add(message_of(f"{self.num_requests}", first, num_blocks, salt))
        self.run()

    def run(self):
        while self.engine.core.has_work():
            for batch in self.engine.step()[1].kv_events:
                self.report.take(batch)

    def read(self, is_lost=False):
        """Collect a report; the router's number of requests makes each one another."""
        self.clock.now_s += 1.0
        self.num_reports += 1
        changes = self.report.report()
        if not is_lost:
            self.routing.report("a", ReplicaLoad(self.num_reports, 0, changes))

    def cached(self):
        """Return the number of blocks of each prefix that a prompt would find."""
        return {
            (first, salt): self.engine_blocks(first, salt) for first in range(4) for salt in SALTS
        }

    def engine_blocks(self, first, salt):
        kv, message = self.engine.core.scheduler.kv, message_of("probe", first, 5, salt)
        hasher = BlockHasher(SIZE, ROOT)
        hashes = [hasher.start(message)]
        hasher.extend(hashes, message.token_ids, 5)
        flags = [kv.pool.find(0, block) is not None for block in hashes[1:]]
        return flags.index(False) if False in flags else len(flags)

    def known(self):
        return {(first, salt): self.known_blocks(first, salt) for first, salt in self.cached()}

    def known_blocks(self, first, salt):
        router = self.routing._known_router
        prompt = PromptTokens([first] * (SIZE * 5 + 1), owner_of(None, salt), 1)
        hashes = router._hashes(as_request("probe", prompt))
        return router.prefixes.num_held(0, hashes[1:])


def message_of(name, first, num_blocks, salt):
    message = make_message(name, [first] * (SIZE * num_blocks + 1), 1)
    return msgspec.structs.replace(message, cache_salt=salt)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 5), st.sampled_from(SALTS), st.booleans(), st.booleans()
    ),
    max_size=30,
)


@given(STEPS)
def test_after_each_report_that_it_reads_in_time_the_router_is_right(steps):
    scene = Scene()
    for number, (first, num_blocks, salt, is_reset, may_be_lost) in enumerate(steps):
        is_lost = may_be_lost and number % int(WINDOW_S - 1) != 0
        scene.compute(first, num_blocks, salt)
        if is_reset and first == 0:
            scene.engine.core.control(ResetPrefixCache())
            scene.run()
        scene.read(is_lost)
        if not is_lost:
            assert scene.known() == scene.cached()


def test_a_router_that_missed_too_much_waits_for_the_whole_contents():
    scene = Scene()
    scene.compute(0, 3)
    scene.read()
    known = scene.known()
    for first in range(1, 4):
        scene.clock.now_s += WINDOW_S + 1
        scene.compute(first, 3)
    scene.read()
    assert scene.known() == known != scene.cached()
    for _ in range(WHOLE_EVERY):
        scene.read()
    assert scene.known() == scene.cached()
    scene.compute(0, 2)
    scene.read()
    assert scene.known() == scene.cached()


def stored(hashes, parent=b"start", position=0, group=0, adapter=None):
    return BlocksStored(
        group=group,
        hashes=hashes,
        parent=parent,
        position=position,
        token_ids=list(range(position, position + 4 * len(hashes))),
        block_size=4,
        adapter=adapter,
    )


def changes_of(*batches, is_snapshot=False):
    report = CacheReport(4)
    for number, events in enumerate(batches, 1):
        report.take(KVEventBatch(0, "i", number, list(events), is_snapshot))
    for _ in range(NUM_WHOLE - 1):
        assert report.report()[0].is_whole
    return report.report()


def test_what_comes_and_goes_in_one_batch_is_no_change():
    (change,) = changes_of([stored([b"a", b"b"]), BlocksRemoved(0, [b"b"])])
    assert len(change.stored) == 1
    assert len(change.stored[0]) == HASH_BYTES
    assert change.removed == []
    _, second = changes_of([stored([b"a"])], [BlocksRemoved(0, [b"a"]), stored([b"a"])])
    assert (second.number, second.stored, second.removed) == (2, [], [])


def test_a_block_is_removed_with_its_last_group():
    changes = changes_of(
        [stored([b"a"]), stored([b"a"], group=1)], [BlocksRemoved(1, [b"a"])],
        [BlocksRemoved(0, [b"a"])],
    )  # fmt: skip
    assert [len(change.stored) for change in changes] == [1, 0, 0]
    assert [len(change.removed) for change in changes] == [0, 0, 1]


def test_a_block_without_its_parent_has_no_name():
    (change,) = changes_of([stored([b"b"], parent=b"a", position=4), BlocksRemoved(0, [b"b"])])
    assert (change.stored, change.removed) == ([], [])


def test_blocks_of_an_adapter_have_other_names():
    (change,) = changes_of([stored([b"a"]), stored([b"b"], adapter="tuned")])
    assert len(set(change.stored)) == 2


def test_a_cleared_cache_has_what_was_stored_since():
    (_, change) = changes_of([stored([b"a"])], [CacheCleared(), stored([b"b"])])
    assert (change.was_cleared, len(change.stored), change.removed) == (True, 1, [])


def test_a_snapshot_of_the_engine_replaces_everything():
    report = CacheReport(4)
    report.take(KVEventBatch(0, "i", 1, [stored([b"a"])]))
    report.take(KVEventBatch(0, "i", 9, [stored([b"b", b"c"])], is_snapshot=True))
    (whole,) = report.report()
    assert (whole.is_whole, whole.number, len(whole.stored)) == (True, 2, 2)
