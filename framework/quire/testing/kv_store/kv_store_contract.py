"""What every KV store must do: bring back the bytes that it was given, or say that it cannot.

Write a test class for your store, and pytest does the rest:

    class TestAcmeStore(KVStoreContract):
        scheduler_class = AcmeScheduler
        worker_class = AcmeWorker

        def options(self, folder, max_bytes):
            return {"path": str(folder), "max_bytes": str(max_bytes)}

Both sides are driven as the engine drives them, in `kv_store_scene`, and after each step every
block of the cache is compared.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
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

PLANS = {"one group": one_group_plan, "three groups": three_groups_plan}
ROOM = 64  # columns; more than most tests save
NUM_WALK_STEPS = 150


class KVStoreContract:
    """The conformance kit.

    Attributes:
        scheduler_class: The half beside the scheduler.
        worker_class: The half beside the model.
    """

    scheduler_class: ClassVar[type[KVStoreScheduler]]
    worker_class: ClassVar[type[KVStoreWorker]]

    def options(self, folder: Path, max_bytes: int) -> Mapping[str, str]:
        """Return options with which the store keeps at most so many bytes of columns.

        Args:
            folder: Empty, and the store's own during one test.
            max_bytes: Room for whole columns.
        """
        del folder
        return {"max_bytes": str(max_bytes)}

    def damage(self, scene: StoreScene, block_hash: bytes) -> None:
        """Change some stored bytes of a column behind the store's back."""
        del scene, block_hash
        pytest.skip("`damage` is not written for this store")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test for models with one KV group, and with several."""
        if {"plan", "build", "scene"} & set(metafunc.fixturenames):
            plans = [build() for build in PLANS.values()]
            metafunc.parametrize("plan", plans, ids=list(PLANS))

    @pytest.fixture
    def build(self, plan: KVPlan, tmp_path: Path) -> Iterator[Callable[[int], StoreScene]]:
        """Return what builds a scene with room for so many columns; it is shut down afterwards."""
        with ExitStack() as built:

            def build_scene(num_cross_blocks: int) -> StoreScene:
                options = self.options(tmp_path, num_cross_blocks * cross_group_block_bytes(plan))
                scene = StoreScene(self.scheduler_class, self.worker_class, options, plan)
                built.callback(scene.shutdown)
                return scene

            yield build_scene

    @pytest.fixture
    def scene(self, build: Callable[[int], StoreScene]) -> StoreScene:
        """Return a scene with room."""
        return build(ROOM)

    def test_what_is_saved_comes_back_byte_for_byte(self, scene: StoreScene) -> None:
        """Into other blocks, and as often as it is asked for."""
        prompt = chain("prompt", 5)
        written = scene.save(prompt)
        assert written == 5, f"{written} of 5 new columns are written, and there is room for all"
        found = scene.lookup(prompt)
        assert found == 5, f"{found} of 5 columns are found that were saved"
        assert scene.load(prompt), "what was saved cannot be loaded"
        assert scene.load(prompt[2:4]), "what was loaded once cannot be loaded again"

    def test_nothing_is_found_in_an_empty_store(self, scene: StoreScene) -> None:
        """And asking for nothing is no error."""
        assert scene.lookup(chain("prompt", 3)) == 0, "something is found that was never saved"
        scene.lookup([])

    def test_nothing_new_is_no_message(self, scene: StoreScene) -> None:
        """Before anything was asked for, and when all of it has ended."""
        assert scene.scheduler.plan_step() == b"", "there is a message before there is anything"
        scene.save(chain("prompt", 2))
        assert scene.scheduler.plan_step() == b"", "the same message is sent again"

    def test_a_lookup_counts_up_to_the_first_gap(self, scene: StoreScene) -> None:
        """What is stored behind it cannot be used."""
        prompt = chain("prompt", 5)
        scene.save([*prompt[:2], *prompt[3:]])
        found = [scene.lookup(prompt[start:]) for start in range(4)]
        assert found[0] == 2, f"{found[0]} columns are found, the third of five is not stored"
        assert found[1] == 1, f"{found[1]} columns are found, the second of four is not stored"
        assert found[2] == 0, f"{found[2]} columns are found, the first of three is not stored"
        assert found[3] == 2, f"{found[3]} of 2 stored columns are found behind a gap"

    def test_what_is_stored_already_is_not_written_again(self, scene: StoreScene) -> None:
        """Only what is new, and nothing at all the second time."""
        prompt = chain("prompt", 8)
        scene.save(prompt[:6])
        written = scene.save(prompt)
        assert written == 2, f"{written} columns are written, and 2 are new"
        written = scene.save(prompt)
        assert written == 0, f"{written} columns are written, and none is new"
        found = scene.lookup(prompt)
        assert found == 8, f"{found} of 8 columns are found that were saved piece by piece"
        assert scene.load(prompt), "what was saved piece by piece cannot be loaded in one"

    def test_nothing_is_offered_before_it_is_written(self, scene: StoreScene) -> None:
        """The scheduler's half has to wait for the report."""
        prompt = chain("prompt", 3)
        scene.start_save(prompt)
        early = scene.scheduler.lookup("early", prompt).num_blocks
        assert early == 0, f"{early} columns are offered before they are reported as written"
        scene.settle()
        assert scene.lookup(prompt) == 3, "what was looked up too early is not found later"

    def test_a_column_that_is_not_whole_is_not_stored(self, scene: StoreScene) -> None:
        """Block 0 has no content; a later offer of the whole column counts."""
        prompt = chain("prompt", 2)
        written = scene.start_save(prompt, null_group=len(scene.plan.groups) - 1)
        assert written == 0, f"{written} columns are written that have the null block in a group"
        scene.settle()
        assert scene.lookup(prompt) == 0, "columns are offered that were not whole"
        assert scene.save(prompt) == 2, "columns that were not whole are not stored once they are"

    def test_a_block_that_is_not_needed_is_not_loaded(self, scene: StoreScene) -> None:
        """The others are, and the null block stays as it is."""
        prompt = chain("prompt", 2)
        scene.save(prompt)
        scene.lookup(prompt)
        transfer_id = scene.start_load(prompt, null_group=0)
        scene.settle()
        assert transfer_id in scene.done, "a load with the null block in a group fails"

    def test_transfers_run_beside_each_other(self, scene: StoreScene) -> None:
        """Also two loads of the same content, and when the requests are gone meanwhile."""
        first, second = chain("first", 4), chain("second", 4)
        scene.save(first)
        scene.lookup(first)
        loads = [scene.start_load(first), scene.start_load(first[:2])]
        scene.start_save(second)
        scene.scheduler.forget_request("request")
        scene.settle()
        assert set(loads) <= set(scene.done), "of two loads of the same columns one fails"
        assert scene.lookup(second) == 4, "what was saved for a request that is over is not found"

    def test_it_keeps_within_its_bytes(self, build: Callable[[int], StoreScene]) -> None:
        """Much more than fits is offered; what is found then is right, and no more than fits."""
        scene = build(4)
        prompts = [chain(f"prompt {index}", 3) for index in range(8)]
        for prompt in prompts:
            scene.save(prompt)
        found = sum(self._num_found(scene, prompt) for prompt in prompts)
        assert found <= 4, f"{found} columns are found, and 4 have room"
        assert not scene.failed, f"transfers {scene.failed} failed while columns had to go"

    def test_more_than_fits_at_once_is_no_error(self, build: Callable[[int], StoreScene]) -> None:
        """Everything in the store moves: the rest is skipped, and all transfers end."""
        scene = build(4)
        prompts = [chain(f"prompt {index}", 3) for index in range(6)]
        written = [scene.start_save(prompt) for prompt in prompts]
        assert sum(written) <= 4, f"{sum(written)} columns are being written, and 4 have room"
        scene.settle()
        found = sum(self._num_found(scene, prompt) for prompt in prompts)
        assert found <= 4, f"{found} columns are found, and 4 have room"

    def test_what_is_evicted_since_it_was_looked_up_is_brought_or_fails(
        self, build: Callable[[int], StoreScene]
    ) -> None:
        """But it is never something else: the scene compares the bytes."""
        scene = build(4)
        prompt = chain("prompt", 4)
        scene.save(prompt)
        scene.lookup(prompt)
        for index in range(3):
            scene.start_save(chain(f"other {index}", 2))
        scene.start_load(prompt)
        scene.settle()

    def test_what_failed_to_load_is_not_offered_again(self, scene: StoreScene) -> None:
        """Until somebody computes and saves it anew; what else is stored is still there."""
        prompt, other = chain("prompt", 3), chain("other", 2)
        scene.save(prompt)
        scene.save(other)
        scene.lookup(prompt)
        scene.end(scene.start_load(prompt), has_failed=True)
        assert scene.lookup(prompt) == 0, "what failed to load is offered again"
        assert scene.lookup(other) == 2, "with what failed to load, other content is lost"

    def test_what_failed_to_be_saved_is_not_offered(self, scene: StoreScene) -> None:
        """The engine says so, whoever is to blame."""
        prompt = chain("prompt", 3)
        scene.start_save(prompt)
        (transfer_id,) = scene.open
        scene.end(transfer_id, has_failed=True)
        assert scene.lookup(prompt) == 0, "what failed to be saved is offered"

    def test_damaged_bytes_are_a_failed_load(self, scene: StoreScene) -> None:
        """Never wrong tokens; and the column is not offered again, until it is saved again."""
        prompt = chain("prompt", 4)
        scene.save(prompt)
        self.damage(scene, prompt[2])
        if (found := scene.lookup(prompt)) > 2:  # the store need not know yet
            is_loaded = scene.load(prompt[:found])
            assert not is_loaded, "the damaged column came back whole: does `damage` change it?"
        found = scene.lookup(prompt)
        assert found <= 2, f"{found} columns are offered, and the third is known to be damaged"
        scene.save(prompt)
        assert scene.lookup(prompt) == 4, "a column that was damaged is not stored anew"
        assert scene.load(prompt), "a column that was damaged cannot be loaded once saved anew"

    def test_a_reset_forgets_all_content(self, scene: StoreScene) -> None:
        """Also what is on its way; those transfers end all the same."""
        prompt, late = chain("prompt", 3), chain("late", 3)
        scene.save(prompt)
        scene.lookup(prompt)
        scene.start_load(prompt)
        scene.start_save(late)
        scene.scheduler.reset()
        assert scene.lookup(prompt) == 0, "what was stored before a reset is offered"
        scene.settle()
        assert scene.lookup(prompt) == 0, "what was being loaded at a reset is offered"
        assert scene.lookup(late) == 0, "what was being saved at a reset is offered"
        assert scene.save(prompt) == 3, "what was stored before a reset is not stored anew"
        assert scene.load(prompt), "what is stored after a reset cannot be loaded"

    @pytest.mark.parametrize("seed", range(3))
    def test_nothing_goes_wrong_on_a_random_walk(
        self, build: Callable[[int], StoreScene], seed: int
    ) -> None:
        """Saves and loads under pressure, begun and ended in any order."""
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
        scene.settle()
        found = sum(self._num_found(scene, prompt) for prompt in prompts)
        assert found <= 8, f"{found} columns are found, and 8 have room"
        assert not scene.failed, f"transfers {scene.failed} failed, and nothing was wrong"

    def test_an_unknown_option_is_refused_by_name(self, plan: KVPlan, tmp_path: Path) -> None:
        """A misspelt option is never ignored; `check_options` has nothing against right ones."""
        options = dict(self.options(tmp_path, ROOM * cross_group_block_bytes(plan)))
        self.scheduler_class.check_options(options)
        self.scheduler_class.check_options(options, plan)
        with pytest.raises(SettingsError, match="no_such_option"):
            self.scheduler_class(options | {"no_such_option": "1"}, plan)

    def test_shutdown_may_be_called_twice(self, scene: StoreScene) -> None:
        """Also with transfers that are open; from then on no block is written."""
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
        assert all(torch.equal(*pair) for pair in pairs), "blocks are written after shutdown"

    def test_the_schedulers_half_loads_no_torch(self) -> None:
        """It lives in the engine's process, which may have none."""
        module = self.scheduler_class.__module__
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}, sys; print('torch' in sys.modules)"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == "False", done.stderr or f"{module} imports torch"

    def _num_found(self, scene: StoreScene, prompt: list[bytes]) -> int:
        """Return how many columns of a prompt are stored, gaps or not, and load them."""
        found = [block_hash for block_hash in prompt if scene.lookup([block_hash])]
        if found:
            assert scene.load(found), "what is offered cannot be loaded"
        return len(found)
