"""What every attention backend must do: declared capabilities are promises, and they are tried.

Write a test class for your backend, and pytest does the rest:

    class TestMine(AttentionBackendContract):
        backend_class = MyBackend
        capabilities = MY_CAPABILITIES

All answers are compared with a float64 reference that is attention's definition and nothing else.
KV-cache types other than float32, bfloat16 and float16, attention sinks and layouts other than "kv"
are not covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from quire.interfaces.attention import (
    AttentionBackend,
    AttentionCapabilities,
    AttentionLayerParams,
    AttentionQuery,
)
from quire.testing.attention_scene import (
    DTYPES,
    AttentionScene,
    Padding,
    SceneSizes,
    reference_attention,
)

HEAD_DIMS = (32, 40, 64, 128)  # tried where a backend declares: any
BLOCK_SIZES = (1, 8, 16, 64)
HEADS = ((4, 4), (4, 2), (6, 2), (8, 1))  # query heads, key/value heads
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
INVARIANT_LENGTH = 150
RAGGED = (1, 37, 16, 5, 64)
REACHES = (1, 5, 16, 33)  # tokens of a window or a chunk


class AttentionBackendContract:
    """Tests that an attention backend must pass.

    Attributes:
        backend_class: The backend.
        capabilities: What it is registered with.
        device: Where the tests run; a device that it declares.
    """

    backend_class: ClassVar[type[AttentionBackend]]
    capabilities: ClassVar[AttentionCapabilities]
    device: ClassVar[str] = "cpu"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test the cases that the backend declares."""
        cases: dict[str, Sequence[object]] = {
            "sizes": list(self._declared_sizes()),
            "types": list(self._declared_types()),
            "window": REACHES if self.capabilities.sliding_window else (),
            "chunk_size": REACHES if self.capabilities.attention_chunk else (),
            "soft_cap": (2.0, 30.0) if self.capabilities.logit_soft_cap else (),
            "reach": list(self._declared_reaches()),
            "page_padding": (1, 7, 64) if self.capabilities.padded_pages else (),
            "invariant": list(self._declared_invariant()),
        }
        for name in set(cases) & set(metafunc.fixturenames):
            metafunc.parametrize(name, cases[name], ids=_case_name)

    def test_the_declared_sizes_work(self, sizes: SceneSizes) -> None:
        """Prompts of uneven lengths in one step, then three tokens each."""
        scene = self._scene(sizes)
        numbers = [scene.add(length + 3) for length in RAGGED]
        self._check(scene.step(list(zip(numbers, RAGGED, strict=True))))
        for _ in range(3):
            self._check(scene.step([(number, 1) for number in numbers]))

    def test_the_declared_types_work(self, types: tuple[str, str]) -> None:
        """Every element type with every type of the cache."""
        dtype, kv_dtype = types
        scene = self._scene(replace(self._plain(), dtype=dtype, kv_dtype=kv_dtype))
        numbers = [scene.add(30), scene.add(9)]
        tolerance = max(TOLERANCES[dtype], TOLERANCES[kv_dtype])
        self._check(scene.step([(numbers[0], 29), (numbers[1], 8)]), tolerance)
        self._check(scene.step([(number, 1) for number in numbers]), tolerance)

    @pytest.mark.parametrize("chunk", [1, 2, 7, 16, 40, 200])
    def test_a_prompt_in_chunks_equals_the_whole(self, chunk: int) -> None:
        """The context of a chunk is what earlier chunks wrote."""
        scene = self._scene(self._plain())
        length = 200 if chunk >= 40 else 45
        number = scene.add(length)
        for start in range(0, length, chunk):
            self._check(scene.step([(number, min(chunk, length - start))]))

    def test_prompts_and_single_tokens_share_a_step(self) -> None:
        """Decode rows before, between and behind rows with several tokens."""
        scene = self._scene(self._plain())
        decoding = [scene.add(length + 1) for length in (20, 3, 47)]
        self._check(scene.step([(n, len(scene.requests[n].q) - 1) for n in decoding]))
        fresh, chunk, drafts = scene.add(33), scene.add(64), scene.add(30)
        self._check(scene.step([(chunk, 20), (drafts, 25)]))
        a, b, c = decoding
        self._check(scene.step([(a, 1), (fresh, 33), (b, 1), (chunk, 44), (drafts, 5), (c, 1)]))

    def test_very_uneven_contexts_share_a_step(self) -> None:
        """One long context beside many short ones."""
        scene = self._scene(self._plain())
        lengths = (3, 600, 7, 90, 1, 12, 320)
        numbers = [scene.add(length + 2) for length in lengths]
        for number, length in zip(numbers, lengths, strict=True):
            scene.step([(number, length)])
        self._check(scene.step([(number, 1) for number in numbers]))
        self._check(scene.step([(number, 1) for number in reversed(numbers)]))

    def test_a_shared_prefix_is_read_from_the_other_requests_blocks(self) -> None:
        """Only what is new is computed, and the shared blocks stay as they are."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        donor = scene.add(2 * size + 3)
        scene.step([(donor, 2 * size + 3)])
        guest = scene.add_with_prefix_of(donor, 2, 2 * size + 9)
        before = scene.raw[scene.requests[donor].block_ids].clone()
        self._check(scene.step([(guest, 8)]))
        self._check(scene.step([(guest, 1)]))
        assert torch.equal(before, scene.raw[scene.requests[donor].block_ids]), (
            "a step of one request changed blocks of another"
        )

    def test_the_order_of_requests_changes_nothing(self) -> None:
        """A request's answer is its own."""
        plan = [(0, 17), (1, 1), (2, 40), (3, 1)]
        answers = []
        for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
            scene = self._scene(self._plain())
            for length in (17, 25, 40, 9):
                scene.add(length)
            scene.step([(1, 24), (3, 8)])
            pairs = scene.step([plan[index] for index in order])
            answers.append([pairs[order.index(index)][0] for index in range(4)])
        for one, other in zip(*answers, strict=True):
            _assert_close(one, other, 1e-6)

    @pytest.mark.parametrize("padding", [Padding(0, 3), Padding(2, 2)], ids=["tokens", "requests"])
    def test_padding_writes_to_the_null_block_only(self, padding: Padding) -> None:
        """Rows of padding neither disturb an answer nor touch anybody's block."""
        scene = self._scene(self._plain())
        first, second = scene.add(30), scene.add(12)
        self._check(scene.step([(first, 20), (second, 11)], padding))
        before = scene.raw.clone()
        self._check(scene.step([(first, 1), (second, 1)], padding))
        self._check_writes(scene, before, [(first, 20), (second, 11)])

    def test_only_the_slots_of_a_step_are_written(self) -> None:
        """A step changes the blocks of its new tokens and no other."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        still, moving = scene.add(3 * size), scene.add(3 * size)
        scene.step([(still, 2 * size), (moving, size)])
        before = scene.raw.clone()
        scene.step([(moving, size + 1)])
        self._check_writes(scene, before, [(moving, size), (moving, 2 * size)])

    def test_a_block_is_contiguous_and_outermost(self) -> None:
        """The engine copies and frees whole blocks without knowing the layout."""
        scene = self._scene(self._plain())
        scene.raw.zero_()
        scene.kv_cache[3].fill_(1)
        changed = scene.raw.any(1).nonzero().flatten().tolist()
        assert len(scene.kv_cache) == len(scene.raw), "the first dimension of kv_view must be B"
        assert changed == [3], f"writing kv_view[3] changed the bytes of blocks {changed}"

    def test_layers_share_the_metadata_of_a_step(self) -> None:
        """What `prepare` made serves each layer, with its own cache and scale."""
        scene = self._scene(self._plain())
        scene.add(20)
        metadata = scene.backend.prepare(scene.layout([(0, 20)], Padding()))
        q, k, v = scene.inputs([(0, 20)])
        first, second = AttentionLayerParams(0.2), AttentionLayerParams(0.5)
        other_cache = torch.zeros_like(scene.kv_cache)
        scene.backend.forward(q, k, v, scene.kv_cache, metadata, first)
        before = scene.raw.clone()
        out = scene.backend.forward(q, -k, 2 * v, other_cache, metadata, second)
        truth = reference_attention(q.double(), -k.double(), 2 * v.double(), second)
        _assert_close(out.cpu(), truth.cpu(), 2 * self._tolerance)
        assert torch.equal(before, scene.raw), "one layer wrote into the cache of another"

    def test_windows_hide_what_lies_before(self, window: int) -> None:
        """For prompts, single tokens, and both in one step."""
        self._check_reach(replace(self._plain(), window=window))

    def test_chunks_hide_what_lies_before(self, chunk_size: int) -> None:
        """The query's own chunk is all that it sees, wherever the step cuts."""
        self._check_reach(replace(self._plain(), chunk=chunk_size))

    @pytest.mark.parametrize("is_taken", [False, True], ids=["null block", "others' blocks"])
    def test_what_no_query_sees_is_never_read(self, reach: SceneSizes, is_taken: bool) -> None:
        """It is NaN, which no mask hides: blocks left behind, ends of blocks, the null block."""
        scene = self._scene(reach)
        long, short, fresh = scene.add(150), scene.add(40), scene.add(70)
        self._check(scene.step([(long, 90), (short, 4)], Padding(1, 3)))
        steps = (
            [(long, 1), (short, 17)],  # a single token, a chunk
            [(fresh, 50), (long, 1), (short, 1)],  # a prompt, two single tokens
            [(long, 1), (short, 1), (fresh, 1)],
            [(long, 1), (short, 1), (fresh, 1)],
            [(short, 1), (long, 3), (fresh, 9)],
        )
        for plan in steps:
            for number, _ in plan:
                scene.give_up_unseen(number, is_taken=is_taken)
            self._check(scene.step(plan, Padding(1, 3)))

    def test_pages_may_be_padded(self, page_padding: int) -> None:
        """The padding is neither read nor written: another layer may live there."""
        scene = self._scene(replace(self._plain(), num_padding_rows=page_padding))
        padding = scene.raw[:, scene.page_bytes :].clone()
        numbers = [scene.add(length + 3) for length in RAGGED]
        self._check(scene.step(list(zip(numbers, RAGGED, strict=True))))
        for _ in range(3):
            self._check(scene.step([(number, 1) for number in numbers]))
        assert torch.equal(padding, scene.raw[:, scene.page_bytes :]), "padding was written"

    def test_a_write_from_outside_is_seen_after_forget_context(self) -> None:
        """Between two steps of the same requests, as a KV store or a copied block does it."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        number, other = scene.add(40), scene.add(size)
        scene.step([(number, 30), (other, size)])
        for _ in range(2):
            self._check(scene.step([(number, 1)]))
        changed, source = scene.requests[number], scene.requests[other]
        scene.raw[changed.block_ids[0]] = scene.raw[source.block_ids[0]]
        changed.k[:size], changed.v[:size] = source.k[:size], source.v[:size]
        scene.backend.forget_context()
        self._check(scene.step([(number, 1)]))

    def test_scores_are_capped(self, soft_cap: float) -> None:
        """The cap acts on the scaled score, before the mask."""
        scene = self._scene(replace(self._plain(), soft_cap=soft_cap))
        scene.add(50)
        scene.add(9)
        self._check(scene.step([(0, 48), (1, 7)]))
        self._check(scene.step([(0, 1), (1, 1)]))

    def test_batch_invariant_answers_are_bit_identical(self, invariant: SceneSizes) -> None:
        """Where it is declared: alone or in any batch, whole or in any chunks, the same bits."""
        alone = self._answers(invariant, [INVARIANT_LENGTH], [])
        for chunks, others in (
            ([1], []),
            ([1], [5, 90, 200]),
            ([3, 1, 60, 1, 59], []),
            ([40], [1, 64, 7, 128, 2, 33]),
            ([128, 1, 21], [20]),
        ):
            answers = self._answers(invariant, chunks, others)
            assert torch.equal(answers, alone), (
                f"in chunks of {chunks}, beside requests of {others} tokens, a row differs"
            )

    def _answers(
        self, sizes: SceneSizes, chunks: Sequence[int], others: Sequence[int]
    ) -> Tensor:  # [L, H, D]
        """Return all answers to one request, computed in chunks beside others."""
        scene = self._scene(sizes)
        number = scene.add(INVARIANT_LENGTH)
        beside = [scene.add(length + INVARIANT_LENGTH) for length in others]
        if beside:
            scene.answers(list(zip(beside, others, strict=True)))
        answers, done = [], 0
        for chunk in itertools.cycle(chunks):
            num_new = min(chunk, INVARIANT_LENGTH - done)
            place = done % (len(beside) + 1)
            plan = [(other, 1) for other in beside]
            plan.insert(place, (number, num_new))
            answers.append(scene.answers(plan)[place])
            done += num_new
            if done == INVARIANT_LENGTH:
                break
        return torch.cat(answers)

    @property
    def _tolerance(self) -> float:
        return max(TOLERANCES[self._plain().dtype], TOLERANCES[self._plain().kv_dtype])

    def _scene(self, sizes: SceneSizes) -> AttentionScene:
        """Build a scene, after asking the declared capabilities whether they allow it."""
        query = AttentionQuery(
            device=sizes.device,
            dtype=sizes.dtype,
            kv_dtype=sizes.kv_dtype,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            block_size=sizes.block_size,
            sliding_window=sizes.window,
            attention_chunk=sizes.chunk,
            logit_soft_cap=sizes.soft_cap,
            batch_invariant=sizes.batch_invariant,
        )
        refusal = self.capabilities.refusal(query)
        assert refusal is None, f"the kit asked for what is not declared: {refusal}"
        return AttentionScene(self.backend_class, sizes)

    def _plain(self) -> SceneSizes:
        """Return one set of sizes that the backend declares."""
        return next(iter(self._declared_sizes()))

    def _declared_sizes(self) -> Iterator[SceneSizes]:
        declared = self.capabilities
        head_dims = sorted(declared.head_dims or HEAD_DIMS, key=lambda d: (d != 64, d))
        block_sizes = sorted(declared.block_sizes or BLOCK_SIZES, key=lambda s: (s != 16, s))
        dtype, kv_dtype = next(iter(self._declared_types()))
        plain = SceneSizes(dtype=dtype, kv_dtype=kv_dtype, device=self.device)
        for block_size in block_sizes:
            for head_dim in head_dims:
                for num_heads, num_kv_heads in HEADS:
                    yield replace(
                        plain,
                        num_heads=num_heads,
                        num_kv_heads=num_kv_heads,
                        head_dim=head_dim,
                        block_size=block_size,
                    )

    def _declared_types(self) -> Iterator[tuple[str, str]]:
        for dtype in DTYPES:
            for kv_dtype in DTYPES:
                declared = self.capabilities
                if dtype in declared.dtypes and kv_dtype in declared.kv_dtypes:
                    yield dtype, kv_dtype

    def _declared_reaches(self) -> Iterator[SceneSizes]:
        plain, declared = self._plain(), self.capabilities
        yield plain
        for tokens in REACHES:
            if declared.sliding_window:
                yield replace(plain, window=tokens)
            if declared.attention_chunk:
                yield replace(plain, chunk=tokens)

    def _declared_invariant(self) -> Iterator[SceneSizes]:
        declared = self.capabilities
        if not declared.batch_invariant:
            return
        plain = replace(self._plain(), batch_invariant=True)
        for dtype, kv_dtype in self._declared_types():
            if dtype == kv_dtype:
                yield replace(plain, dtype=dtype, kv_dtype=kv_dtype)
        for num_heads, num_kv_heads in HEADS[1:]:
            yield replace(plain, num_heads=num_heads, num_kv_heads=num_kv_heads)
        if declared.sliding_window:
            yield replace(plain, window=33)
        if declared.attention_chunk:
            yield replace(plain, chunk=100)
        if declared.logit_soft_cap:
            yield replace(plain, soft_cap=2.0)

    def _check_reach(self, sizes: SceneSizes) -> None:
        scene = self._scene(sizes)
        numbers = [scene.add(length + 20) for length in (50, 4, 31)]
        self._check(scene.step([(0, 50), (1, 4), (2, 31)]))
        self._check(scene.step([(0, 1), (1, 17), (2, 1)]))
        self._check(scene.step([(number, 1) for number in numbers]))

    def _check(
        self, pairs: Sequence[tuple[Tensor, Tensor]], tolerance: float | None = None
    ) -> None:
        for index, (answer, truth) in enumerate(pairs):
            limit = tolerance or self._tolerance
            _assert_close(answer, truth, limit, f"row {index} of the step")

    def _check_writes(
        self, scene: AttentionScene, before: Tensor, positions: Sequence[tuple[int, int]]
    ) -> None:
        size = scene.sizes.block_size
        may = {scene.requests[number].block_ids[p // size] for number, p in positions} | {0}
        changed = set((before != scene.raw).any(1).nonzero().flatten().tolist())
        assert changed <= may, f"blocks {sorted(changed - may)} are not of this step, but written"


def _assert_close(answer: Tensor, truth: Tensor, limit: float, what: str = "the answer") -> None:
    assert answer.shape == truth.shape, f"{what} has shape {answer.shape}, not {truth.shape}"
    difference = (answer.double() - truth.double()).abs().max().item()
    assert difference <= limit, f"{what} is off by {difference:.2e}, allowed are {limit:.0e}"


def _case_name(case: object) -> str:
    if isinstance(case, SceneSizes):
        sizes = f"H{case.num_heads}-K{case.num_kv_heads}-D{case.head_dim}-S{case.block_size}"
        special = {"window": case.window, "chunk": case.chunk, "cap": case.soft_cap}
        parts = [f"{name}{value}" for name, value in special.items() if value is not None]
        return "-".join([sizes, *parts, case.dtype])
    return "-".join(case) if isinstance(case, tuple) else str(case)
