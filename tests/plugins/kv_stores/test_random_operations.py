"""Random operations on both sides: no wrong bytes, no bytes beyond the limit, nothing kept open.

The scene compares what loads bring with what was saved, and looks for stray writes after each step.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from quire.interfaces.kv_transfer import cross_group_block_bytes
from quire.testing.kv_store.kv_store_scene import NUM_BLOCKS, StoreScene, chain
from quire.testing.kv_store.kv_store_scene import one_group_plan as one_group
from quire.testing.kv_store.kv_store_scene import three_groups_plan as three_groups
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory

LENGTH = 4
PROMPTS = [chain(f"prompt {index}", LENGTH) for index in range(4)]
MOST_BLOCKS = 3 * LENGTH  # of one transfer

prompts = st.integers(0, len(PROMPTS) - 1).map(PROMPTS.__getitem__)
lengths = st.integers(1, LENGTH)


class HostMemoryMachine(RuleBasedStateMachine):
    @initialize(
        build=st.sampled_from([one_group, three_groups]),
        num_cross_blocks=st.integers(1, 10),
        blocks_per_step=st.integers(1, 6),
    )
    def start(self, build, num_cross_blocks, blocks_per_step):
        plan = build()
        size = cross_group_block_bytes(plan)
        self.max_bytes = num_cross_blocks * size + size - 1
        options = {"max_bytes": str(self.max_bytes), "step_bytes": str(blocks_per_step * size)}
        self.scene = StoreScene(HostMemoryScheduler, HostMemory, options, plan)
        self.index = self.scene.scheduler.index
        self.num_slots = num_cross_blocks
        self.saved = set()  # all that may be stored
        self.is_damaged = False
        self.is_evicted = False

    def has_blocks(self):
        return self.scene.num_free_blocks >= MOST_BLOCKS

    @precondition(has_blocks)
    @rule(prompt=prompts, length=lengths, skipped=st.integers(0, LENGTH - 1))
    def save(self, prompt, length, skipped):
        self.scene.start_save(prompt[skipped : skipped + length])
        self.saved |= set(prompt[skipped : skipped + length])

    @precondition(has_blocks)
    @rule(prompt=prompts, skipped=st.integers(0, LENGTH - 1))
    def load(self, prompt, skipped):
        wanted = prompt[skipped:]
        if found := self.scene.lookup(wanted):
            self.scene.start_load(wanted[:found])

    @precondition(has_blocks)
    @rule(prompt=prompts, other=prompts)
    def save_between_lookup_and_load(self, prompt, other):
        found = self.scene.lookup(prompt)
        self.save(other, LENGTH, 0)
        if found and self.has_blocks():
            self.is_evicted = True  # perhaps
            self.scene.start_load(prompt[:found])

    @rule()
    def step(self):
        self.scene.step()

    @rule()
    def finish_transfers(self):
        self.scene.finish_transfers()
        assert self.index.num_moving == 0

    @rule()
    def reset(self):
        self.scene.scheduler.reset()
        self.saved.clear()
        assert sum(map(self.scene.lookup, PROMPTS)) == 0

    @rule(prompt=prompts, position=st.integers(0, LENGTH - 1), byte=st.integers(0, 255))
    def damage(self, prompt, position, byte):
        if stored_block := self.index.find(prompt[position]):
            self.scene.worker.pool.slot(stored_block.slot)[byte] ^= 16
            self.is_damaged = True

    @invariant()
    def every_slot_is_accounted_for(self):
        index = self.index
        assert index.num_free + len(index._idle) + index.num_moving == index.num_slots
        assert index.num_slots == self.num_slots
        assert index.num_moving <= sum(len(t.cross_blocks) for t in self.scene.open.values())

    @invariant()
    def memory_stays_within_its_limit(self):
        assert self.scene.worker.pool.num_bytes <= self.max_bytes

    @invariant()
    def only_what_was_saved_is_offered(self):
        assert {
            name for prompt in PROMPTS for name in prompt if self.index.find(name)
        } <= self.saved

    @invariant()
    def loads_fail_for_a_reason(self):
        assert not self.scene.failed or self.is_damaged or self.is_evicted

    def teardown(self):
        if "scene" not in vars(self):
            return
        self.scene.finish_transfers()
        assert self.index.num_moving == 0
        assert self.scene.num_free_blocks == NUM_BLOCKS - 1
        for prompt in PROMPTS:
            for block_hash in prompt:
                if self.scene.lookup([block_hash]):
                    assert self.scene.load([block_hash]) or self.is_damaged
        self.scene.shutdown()


HostMemoryMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestHostMemoryMachine = HostMemoryMachine.TestCase
