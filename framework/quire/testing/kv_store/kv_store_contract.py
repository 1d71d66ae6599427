"""Contract of KV stores: a load restores the saved bytes, or it fails.

Write a test class for your store; pytest collects the inherited tests:

    class TestAcmeStore(KVStoreContract):
        scheduler_class = AcmeScheduler
        worker_class = AcmeWorker

        def options(self, folder, max_bytes):
            return {"path": str(folder), "max_bytes": str(max_bytes)}

`kv_store_scene` drives both sides as the engine does, and compares every block of the cache after
each step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import KVStoreScheduler, KVStoreWorker, cross_group_block_bytes
from quire.testing.kv_store.kv_store_scene import (
    StoreScene,
    chain,
    one_group_plan,
    three_groups_plan,
)
from quire.testing.torch_imports import imports_torch

PLANS = {"one group": one_group_plan, "three groups": three_groups_plan}
AMPLE_BLOCKS = 64  # cross-group blocks; more than most tests save
NUM_WALK_STEPS = 150


class KVStoreContract:
    """Tests that a KV store must pass. A "block" in a message is a cross-group block.

    Attributes:
        scheduler_class: Scheduler side of the store.
        worker_class: Worker side of the store.
    """

    scheduler_class: ClassVar[type[KVStoreScheduler]]
    worker_class: ClassVar[type[KVStoreWorker]]

    def options(self, folder: Path, max_bytes: int) -> Mapping[str, str]:
        """Return options that limit the store to `max_bytes` of cross-group blocks.

        Args:
            folder: Empty folder for the store during one test.
            max_bytes: Capacity of the store, a whole number of cross-group blocks.
        """
        del folder
        return {"max_bytes": str(max_bytes)}

    def damage(self, scene: StoreScene, block_hash: bytes) -> None:
        """Change some stored bytes of a cross-group block without the store's knowledge."""
        del scene, block_hash
        pytest.skip("the test class of this store does not implement `damage`")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize each test with plans of one KV group and of several."""
        if {"plan", "build", "scene"} & set(metafunc.fixturenames):
            plans = [build() for build in PLANS.values()]
            metafunc.parametrize("plan", plans, ids=list(PLANS))

    @pytest.fixture
    def build(self, plan: KVPlan, tmp_path: Path) -> Iterator[Callable[[int], StoreScene]]:
        """Return a builder of scenes with a given capacity; they are shut down after the test."""
        with ExitStack() as built:

            def build_scene(num_cross_blocks: int) -> StoreScene:
                options = self.options(tmp_path, num_cross_blocks * cross_group_block_bytes(plan))
                scene = StoreScene(self.scheduler_class, self.worker_class, options, plan)
                built.callback(scene.shutdown)
                return scene

            yield build_scene

    @pytest.fixture
    def scene(self, build: Callable[[int], StoreScene]) -> StoreScene:
        """Return a scene with room for all blocks of a test."""
        return build(AMPLE_BLOCKS)

    def test_what_is_saved_comes_back_byte_for_byte(self, scene: StoreScene) -> None:
        """Load the same content repeatedly, to other blocks of the cache."""
        prompt = chain("prompt", 5)
        written = scene.save(prompt)
        assert written == 5, f"save must write 5 new blocks, which all fit, but wrote {written}"
        found = scene.lookup(prompt)
        assert found == 5, f"lookup must find the 5 saved blocks, but found {found}"
        assert scene.load(prompt), "the load of saved blocks failed"
        assert scene.load(prompt[2:4]), "the second load of the same blocks failed"

    def test_nothing_is_found_in_an_empty_store(self, scene: StoreScene) -> None:
        """A lookup in an empty store finds nothing, and an empty lookup is no error."""
        assert scene.lookup(chain("prompt", 3)) == 0, "lookup found blocks that were never saved"
        scene.lookup([])

    def test_without_news_the_message_is_empty(self, scene: StoreScene) -> None:
        """`plan_step` returns b"" before the first transfer and after the last."""
        assert scene.scheduler.plan_step() == b"", "plan_step must return b'' before any transfer"
        scene.save(chain("prompt", 2))
        assert scene.scheduler.plan_step() == b"", (
            "plan_step must return b'' after all transfers ended"
        )

    def test_a_lookup_counts_up_to_the_first_gap(self, scene: StoreScene) -> None:
        """Blocks behind a gap cannot be used."""
        prompt = chain("prompt", 5)
        scene.save([*prompt[:2], *prompt[3:]])
        found = [scene.lookup(prompt[start:]) for start in range(4)]
        assert found[0] == 2, f"lookup must find 2 blocks before the gap, but found {found[0]}"
        assert found[1] == 1, f"lookup must find 1 block before the gap, but found {found[1]}"
        assert found[2] == 0, f"lookup must find 0 blocks before the gap, but found {found[2]}"
        assert found[3] == 2, (
            f"lookup that starts behind the gap must find 2 blocks, but found {found[3]}"
        )

    def test_what_is_stored_already_is_not_written_again(self, scene: StoreScene) -> None:
        """Save blocks that are partly stored, then blocks that are all stored."""
        prompt = chain("prompt", 8)
        scene.save(prompt[:6])
        written = scene.save(prompt)
        assert written == 2, f"save must write the 2 new blocks only, but wrote {written}"
        written = scene.save(prompt)
        assert written == 0, (
            f"save must write nothing when all blocks are stored, but wrote {written}"
        )
        found = scene.lookup(prompt)
        assert found == 8, f"lookup must find the 8 blocks of two saves, but found {found}"
        assert scene.load(prompt), "one load of the blocks of two saves failed"

    def test_nothing_is_offered_before_it_is_written(self, scene: StoreScene) -> None:
        """The scheduler side waits for the report that the blocks are written."""
        prompt = chain("prompt", 3)
        scene.start_save(prompt)
        early = scene.scheduler.lookup("early", prompt).num_blocks
        assert early == 0, f"lookup found {early} blocks before they were reported as written"
        scene.finish_transfers()
        assert scene.lookup(prompt) == 3, (
            "lookup must find 3 blocks once they are written, also after an earlier lookup"
        )

    def test_an_incomplete_block_is_not_stored(self, scene: StoreScene) -> None:
        """Offer blocks with the null block in a group, and complete ones later."""
        prompt = chain("prompt", 2)
        written = scene.start_save(prompt, null_group=len(scene.plan.groups) - 1)
        assert written == 0, (
            f"save must not write blocks with the null block in a group, but wrote {written}"
        )
        scene.finish_transfers()
        assert scene.lookup(prompt) == 0, "lookup found incomplete blocks"
        assert scene.save(prompt) == 2, (
            "save must write the 2 complete blocks, also after incomplete ones were offered"
        )

    def test_a_block_that_is_not_needed_is_not_loaded(self, scene: StoreScene) -> None:
        """Load blocks with the null block in a group: the others are loaded, it is not written."""
        prompt = chain("prompt", 2)
        scene.save(prompt)
        scene.lookup(prompt)
        transfer_id = scene.start_load(prompt, null_group=0)
        scene.finish_transfers()
        assert transfer_id in scene.done, "a load with the null block in a group failed"

    def test_transfers_run_beside_each_other(self, scene: StoreScene) -> None:
        """Run two loads of the same content and a save, while the request ends."""
        first, second = chain("first", 4), chain("second", 4)
        scene.save(first)
        scene.lookup(first)
        loads = [scene.start_load(first), scene.start_load(first[:2])]
        scene.start_save(second)
        scene.scheduler.forget_request("request")
        scene.finish_transfers()
        assert set(loads) <= set(scene.done), "one of two loads of the same blocks failed"
        assert scene.lookup(second) == 4, (
            "lookup must find the 4 blocks that were saved for a request that has ended"
        )

    def test_it_stays_within_max_bytes(self, build: Callable[[int], StoreScene]) -> None:
        """Offer much more than fits; no more than fits may be found afterwards."""
        scene = build(4)
        prompts = [chain(f"prompt {index}", 3) for index in range(8)]
        for prompt in prompts:
            scene.save(prompt)
        found = sum(self._num_found(scene, prompt) for prompt in prompts)
        assert found <= 4, f"the store holds {found} blocks, but only 4 fit in max_bytes"
        assert not scene.failed, f"transfers {scene.failed} failed while blocks were evicted"

    def test_more_than_fits_at_once_is_no_error(self, build: Callable[[int], StoreScene]) -> None:
        """Offer more while all stored blocks are in transfers: the rest is skipped."""
        scene = build(4)
        prompts = [chain(f"prompt {index}", 3) for index in range(6)]
        written = [scene.start_save(prompt) for prompt in prompts]
        assert sum(written) <= 4, (
            f"start_save accepted {sum(written)} blocks, but only 4 fit in max_bytes"
        )
        scene.finish_transfers()
        found = sum(self._num_found(scene, prompt) for prompt in prompts)
        assert found <= 4, f"the store holds {found} blocks, but only 4 fit in max_bytes"

    def test_blocks_evicted_after_a_lookup_are_loaded_or_the_load_fails(
        self, build: Callable[[int], StoreScene]
    ) -> None:
        """A load never brings other bytes: the scene compares them."""
        scene = build(4)
        prompt = chain("prompt", 4)
        scene.save(prompt)
        scene.lookup(prompt)
        for index in range(3):
            scene.start_save(chain(f"other {index}", 2))
        scene.start_load(prompt)
        scene.finish_transfers()

    def test_what_failed_to_load_is_not_offered_again(self, scene: StoreScene) -> None:
        """After a failed load the blocks are gone, and others are still stored."""
        prompt, other = chain("prompt", 3), chain("other", 2)
        scene.save(prompt)
        scene.save(other)
        scene.lookup(prompt)
        scene.end(scene.start_load(prompt), has_failed=True)
        assert scene.lookup(prompt) == 0, "lookup found blocks whose load failed"
        assert scene.lookup(other) == 2, "a failed load removed other blocks from the store"

    def test_what_failed_to_be_saved_is_not_offered(self, scene: StoreScene) -> None:
        """The engine reports the failed save to the scheduler side."""
        prompt = chain("prompt", 3)
        scene.start_save(prompt)
        (transfer_id,) = scene.open
        scene.end(transfer_id, has_failed=True)
        assert scene.lookup(prompt) == 0, "lookup found blocks whose save failed"

    def test_damaged_bytes_are_a_failed_load(self, scene: StoreScene) -> None:
        """Fail the load of a damaged block, and do not find it until it is saved again."""
        prompt = chain("prompt", 4)
        scene.save(prompt)
        self.damage(scene, prompt[2])
        if (found := scene.lookup(prompt)) > 2:  # the store may not have noticed yet
            is_loaded = scene.load(prompt[:found])
            assert not is_loaded, "the damaged block was loaded intact: does `damage` change it?"
        found = scene.lookup(prompt)
        assert found <= 2, f"lookup must stop before the damaged third block, but found {found}"
        scene.save(prompt)
        assert scene.lookup(prompt) == 4, "save must write a block again that was damaged"
        assert scene.load(prompt), "the load of a block that was saved again after damage failed"

    def test_a_reset_forgets_all_content(self, scene: StoreScene) -> None:
        """Reset also discards the blocks of open transfers, which still end."""
        prompt, late = chain("prompt", 3), chain("late", 3)
        scene.save(prompt)
        scene.lookup(prompt)
        scene.start_load(prompt)
        scene.start_save(late)
        scene.scheduler.reset()
        assert scene.lookup(prompt) == 0, "lookup found blocks that were stored before a reset"
        scene.finish_transfers()
        assert scene.lookup(prompt) == 0, "lookup found blocks that were being loaded at a reset"
        assert scene.lookup(late) == 0, "lookup found blocks that were being saved at a reset"
        assert scene.save(prompt) == 3, "save must write blocks again after a reset"
        assert scene.load(prompt), "the load of blocks that were saved after a reset failed"

    @pytest.mark.parametrize("seed", range(3))
    def test_nothing_goes_wrong_on_a_random_walk(
        self, build: Callable[[int], StoreScene], seed: int
    ) -> None:
        """Save and load more than fits, with transfers that overlap at random."""
        scene, rng = build(8), random.Random(seed)
        prompts = [chain(f"prompt {index}", 4) for index in range(5)]
        for _ in range(NUM_WALK_STEPS):
            prompt = rng.choice(prompts)
            groups = len(scene.plan.groups)
            if scene.num_free_blocks < 2 * len(prompt) * groups or rng.random() < 0.3:
                scene.step()
            elif rng.random() < 0.5:
                scene.start_save(prompt[: rng.randint(1, 4)])
            elif found := scene.lookup(prompt):
                scene.start_load(prompt[:found])
        scene.finish_transfers()
        found = sum(self._num_found(scene, prompt) for prompt in prompts)
        assert found <= 8, f"the store holds {found} blocks, but only 8 fit in max_bytes"
        assert not scene.failed, f"transfers {scene.failed} failed without a reason"

    def test_an_unknown_option_is_refused_by_name(self, plan: KVPlan, tmp_path: Path) -> None:
        """A misspelt option is an error, and `check_options` accepts the right ones."""
        options = dict(self.options(tmp_path, AMPLE_BLOCKS * cross_group_block_bytes(plan)))
        self.scheduler_class.check_options(options)
        self.scheduler_class.check_options(options, plan)
        with pytest.raises(SettingsError, match="no_such_option"):
            self.scheduler_class(options | {"no_such_option": "1"}, plan)

    def test_shutdown_may_be_called_twice(self, scene: StoreScene) -> None:
        """Shut down with open transfers; afterwards no block may be written."""
        prompt = chain("prompt", 3)
        scene.save(prompt)
        scene.lookup(prompt)
        scene.start_load(prompt)
        scene.start_save(chain("other", 3))
        scene.step()
        scene.shutdown()
        before = [tensor.clone() for tensor in scene.tensors]
        scene.shutdown()
        pairs = zip(before, scene.tensors, strict=True)
        assert all(torch.equal(*pair) for pair in pairs), "a block was written after shutdown"

    def test_the_scheduler_side_imports_no_torch(self) -> None:
        """The scheduler side runs in the engine process, which must not import torch."""
        module = self.scheduler_class.__module__
        assert not imports_torch(f"import {module}"), f"{module} imports torch"

    def _num_found(self, scene: StoreScene, prompt: list[bytes]) -> int:
        """Return the number of stored blocks of a prompt, gaps or not, and load them."""
        found = [block_hash for block_hash in prompt if scene.lookup([block_hash])]
        if found:
            assert scene.load(found), "the load of blocks that lookup found failed"
        return len(found)
