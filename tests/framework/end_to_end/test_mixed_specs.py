"""A model that mixes windows with whole contexts, whole engine, against transformers.

Its layers are two KV specs in three groups, so that one request has three block tables, of which
two give blocks back while it runs.
"""

import json
import random
import shutil
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from kernel_options import BY_EITHER, NATIVE, TORCH
from transformers_model import transformers_model

from quire import LLM, SamplingParams
from quire.engine.kv_cache.kv_plan import blocks_held, fixed_plan
from quire.messages import EngineStats
from quire.testing.checkpoints import write_checkpoint
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec
from quire_models.family_table import describe

NUM_TOKENS = 64
MAX_MODEL_LEN = 280
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPT_LENGTHS = (3, 19, 100, 128, 131, 160, 177, 200)
SPECS = {"full_attention": FullAttentionSpec, "sliding_window": SlidingWindowSpec}
# Name -> config and block size: windows longer and shorter than a block, whole blocks and not.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "window-18-blocks-of-8": ({"sliding_window": 18}, 8),
    "window-8-blocks-of-4": ({"sliding_window": 8}, 4),
    "window-9-blocks-of-16": (
        {"sliding_window": 9, "sliding_window_pattern": 2, "tie_word_embeddings": False},
        16,
    ),
}
STEPS_OF_32: dict[str, Any] = {"max_num_batched_tokens": 32}


class Subject:
    """A checkpoint, prompts, and the completion by transformers for each."""

    def __init__(self, folder: Path, config: dict[str, Any], block_size: int) -> None:
        self.block_size = block_size
        self.checkpoint = write_checkpoint(folder, "Gemma3ForCausalLM", seed=5, **config)
        rng = random.Random(5)
        self.prompts = [[rng.randrange(3, 320) for _ in range(n)] for n in PROMPT_LENGTHS]
        self._model = transformers_model(folder)
        self.expected = [self.run_transformers(prompt) for prompt in self.prompts]

    def llm(self, **options: Any) -> LLM:
        defaults = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN, "threads": 1}
        defaults["block_size"] = self.block_size
        return LLM(str(self.checkpoint.folder), **(defaults | options))

    def pool(self, percent: int, block_size: int | None = None, budget: int = 32) -> int:
        """Blocks of a pool with a fraction of what all requests hold together at their ends.

        The pool fits one request in any case.
        """
        layers = describe(self.checkpoint.config).kv_layers
        size = block_size or self.block_size
        plan = fixed_plan([SPECS[layer.spec](layer, size, "float32") for layer in layers], 2)
        need = sum(blocks_held(plan, n + NUM_TOKENS - 1, 1) for n in PROMPT_LENGTHS)
        return 1 + max(need * percent // 100, blocks_held(plan, MAX_MODEL_LEN, budget))

    @torch.inference_mode()
    def run_transformers(self, prompt: list[int]) -> list[int]:
        token_ids = torch.tensor([prompt])
        out = self._model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        completion: list[int] = out[0, len(prompt) :].tolist()
        return completion


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    """Each case, made on first use."""
    return cache(lambda name: Subject(tmp_path_factory.mktemp(name), *CASES[name]))


SLOW_CASE = pytest.param("window-8-blocks-of-4", marks=pytest.mark.slow)


@pytest.fixture(params=["window-18-blocks-of-8", "window-9-blocks-of-16", SLOW_CASE])
def subject(request, subjects):
    return subjects(request.param)


CASE_BY_EITHER = pytest.mark.parametrize(
    ("subject", "mode"),
    [
        pytest.param("window-18-blocks-of-8", NATIVE, marks=NEEDS_COMPILER, id="18-native"),
        pytest.param("window-18-blocks-of-8", TORCH, id="18-torch"),
        pytest.param("window-9-blocks-of-16", NATIVE, marks=NEEDS_COMPILER, id="9-native"),
        pytest.param("window-9-blocks-of-16", TORCH, marks=pytest.mark.slow, id="9-torch"),
        pytest.param(
            "window-8-blocks-of-4", NATIVE, marks=[NEEDS_COMPILER, pytest.mark.slow], id="8-native"
        ),
        pytest.param("window-8-blocks-of-4", TORCH, marks=pytest.mark.slow, id="8-torch"),
    ],
    indirect=["subject"],
)


@pytest.fixture
def one_subject(subjects):
    return subjects("window-18-blocks-of-8")


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_the_reference_completions_are_varied(subject):
    assert all(len(set(completion)) >= 32 for completion in subject.expected)


@CASE_BY_EITHER
def test_alone_each_completion_is_that_of_transformers(subject, mode):
    with subject.llm(**mode) as llm:
        for prompt, expected in zip(subject.prompts, subject.expected, strict=True):
            assert tokens(llm.generate(prompt, GREEDY)) == [expected]


def test_without_a_prefix_cache_nothing_is_found_and_nothing_changes(subject):
    with subject.llm(enable_prefix_caching=False) as llm:
        for _ in range(2):
            outputs = llm.generate(subject.prompts, GREEDY)
            assert tokens(outputs) == subject.expected
            assert all(output.num_cached_tokens == 0 for output in outputs)


@CASE_BY_EITHER
@pytest.mark.parametrize("async_scheduling", [True, False])
def test_in_a_batch_of_any_order_nothing_changes(subject, async_scheduling, mode):
    rng = random.Random(2)
    with subject.llm(async_scheduling=async_scheduling, **mode) as llm:
        for size in (3, len(PROMPT_LENGTHS)):
            order = rng.sample(range(len(subject.prompts)), size)
            completions = tokens(llm.generate([subject.prompts[i] for i in order], GREEDY))
            assert completions == [subject.expected[i] for i in order]


@pytest.mark.parametrize(
    ("percent", "async_scheduling", "mode"),
    [
        (25, True, {}), (25, True, TORCH), (25, False, {}), (50, True, {}), (50, True, TORCH),
        (100, False, {}),
    ],
    ids=str,
)  # fmt: skip
def test_a_small_pool_changes_nothing(subject, percent, async_scheduling, mode):
    options = {"async_scheduling": async_scheduling, "num_kv_blocks": subject.pool(percent)} | mode
    with subject.llm(**options, **STEPS_OF_32) as llm:
        assert tokens(llm.generate(subject.prompts, GREEDY)) == subject.expected
        stats = llm.stats()
    assert stats.num_used_blocks == 0
    if percent == 25:
        assert stats.num_preemptions > 0


@BY_EITHER
def test_a_prompt_in_chunks_of_many_sizes(one_subject, mode):
    prompt, expected = one_subject.prompts[4], one_subject.expected[4]
    for chunk in (1, 7, 8, 20, 127, 128):
        with one_subject.llm(max_num_batched_tokens=chunk, **mode) as llm:
            assert tokens(llm.generate(prompt, GREEDY)) == [expected], f"chunks of {chunk}"


def test_chunks_and_decodes_mix_in_one_step(one_subject):
    for budget, is_async in ((5, True), (33, False), (100, True)):
        options = {"max_num_batched_tokens": budget, "async_scheduling": is_async}
        with one_subject.llm(**options, max_num_seqs=6) as llm:
            assert tokens(llm.generate(one_subject.prompts, GREEDY)) == one_subject.expected


@pytest.mark.parametrize("block_size", [1, 64])
def test_blocks_of_any_size_hold_the_same(one_subject, block_size):
    with one_subject.llm(block_size=block_size) as llm:
        assert tokens(llm.generate(one_subject.prompts, GREEDY)) == one_subject.expected


@CASE_BY_EITHER
def test_the_same_prompt_again_is_found_in_the_cache(subject, mode):
    with subject.llm(async_scheduling=True, **mode) as llm:
        for prompt, expected in zip(subject.prompts[:5], subject.expected[:5], strict=True):
            first, again = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
            assert tokens([first, again]) == [expected, expected]
            whole_blocks = (len(prompt) - 1) // subject.block_size
            assert (first.num_cached_tokens, again.num_cached_tokens) == (
                0,
                whole_blocks * subject.block_size,
            )


def test_the_next_turn_of_a_conversation_is_found_in_the_cache(subject):
    question = [7, 8, 9, 10, 11]
    with subject.llm() as llm:
        for prompt, completion in zip(subject.prompts[1:3], subject.expected[1:3], strict=True):
            llm.generate(prompt, GREEDY)
            turn = [*prompt, *completion, *question]
            output = llm.generate(turn, GREEDY)[0]
            assert tokens([output]) == [subject.run_transformers(turn)]
            assert output.num_cached_tokens > len(prompt)


def test_a_prompt_that_diverges_from_the_cached_one_finds_its_windows_there(subject):
    prompt, block_size = subject.prompts[-1], subject.block_size
    with subject.llm() as llm:
        llm.generate(prompt, GREEDY)
        for length in (50, 101):
            branch = [*prompt[:length], 9, 8, 7]
            output = llm.generate(branch, GREEDY)[0]
            assert tokens([output]) == [subject.run_transformers(branch)]
            assert output.num_cached_tokens == length // block_size * block_size


def come_and_go(subject: Subject) -> tuple[int, EngineStats]:
    """Run each long prompt twice, another one between, in a pool that cannot keep everything.

    Returns:
        Number of wrong completions, and the statistics at the end.
    """
    num_wrong = 0
    with subject.llm(num_kv_blocks=subject.pool(35), **STEPS_OF_32) as llm:
        for long in range(2, len(PROMPT_LENGTHS)):
            for i in (long, long % 2, long):
                completion = tokens(llm.generate(subject.prompts[i], GREEDY))
                num_wrong += completion != [subject.expected[i]]
        return num_wrong, llm.stats()


def test_what_was_evicted_is_computed_again(one_subject):
    num_wrong, stats = come_and_go(one_subject)
    assert num_wrong == 0
    assert stats.num_evictions > 0
    assert stats.num_prefix_hits > 0
    assert stats.num_used_blocks == 0


def test_a_window_gives_blocks_back_while_the_request_runs(one_subject):
    """One request fits where its blocks would not fit if windows kept them."""
    kept = 3 * -(-(200 + NUM_TOKENS) // 8)  # three tables, whole
    with one_subject.llm(num_kv_blocks=1 + kept * 6 // 10, **STEPS_OF_32) as llm:
        assert tokens(llm.generate(one_subject.prompts[-1], GREEDY)) == [one_subject.expected[-1]]
        assert llm.stats().num_preemptions == 0


def test_an_engine_in_a_separate_process_generates_the_same(one_subject):
    with one_subject.llm(
        engine_process=True, num_kv_blocks=one_subject.pool(25), **STEPS_OF_32
    ) as llm:
        assert tokens(llm.generate(one_subject.prompts, GREEDY)) == one_subject.expected


def test_several_completions_of_one_prompt_share_its_blocks(one_subject):
    params = SamplingParams(temperature=1.0, seed=4, n=3, max_tokens=40, ignore_eos=True)
    prompt = one_subject.prompts[5]
    with one_subject.llm() as llm:
        together = [completion.token_ids for completion in llm.generate(prompt, params)[0].outputs]
    with one_subject.llm(enable_prefix_caching=False, max_num_seqs=1) as llm:
        alone = [completion.token_ids for completion in llm.generate(prompt, params)[0].outputs]
    assert together == alone
    assert len({tuple(completion) for completion in together}) == 3


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_logprobs_are_the_same_however_the_work_is_cut(one_subject, batch_invariant):
    prompts = one_subject.prompts[2:]
    options: dict[str, Any] = {"batch_invariant": batch_invariant}
    with one_subject.llm(**options, enable_prefix_caching=False, max_num_seqs=1) as llm:
        alone = logprobs(llm, prompts)
    options |= {"num_kv_blocks": one_subject.pool(25), "async_scheduling": True}
    with one_subject.llm(**options, **STEPS_OF_32) as llm:
        mixed = logprobs(llm, prompts)
        assert llm.stats().num_preemptions > 0
    assert mixed == alone if batch_invariant else mixed == pytest.approx(alone, abs=1e-4)


def logprobs(llm: LLM, prompts: list[list[int]]) -> list[float]:
    """Of every token of every completion."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
    completions = [output.outputs[0] for output in llm.generate(prompts, params)]
    return [
        row[token_id].logprob
        for completion in completions
        for token_id, row in zip(completion.token_ids, completion.logprobs or [], strict=True)
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"sliding_window": 17}, {"sliding_window": 19}, {"sliding_window_pattern": 2}],
    ids=str,
)
def test_a_wrong_window_would_be_seen(one_subject, tmp_path, wrong):
    folder = shutil.copytree(one_subject.checkpoint.folder, tmp_path / "wrong")
    config = {**one_subject.checkpoint.config, **wrong}
    (folder / "config.json").write_text(json.dumps(config))
    with LLM(str(folder), dtype="float32", max_model_len=MAX_MODEL_LEN, threads=1) as llm:
        completions = tokens(llm.generate(one_subject.prompts, GREEDY))
    assert sum(a != b for a, b in zip(completions, one_subject.expected, strict=True)) >= 6


def frees_one_block_early(spec: SlidingWindowSpec, num_computed_tokens: int) -> range:
    return range(max(0, (num_computed_tokens - spec.window + 1) // spec.block_size + 1))


def hits_without_the_window(spec: SlidingWindowSpec, is_cached: Sequence[bool]) -> int:
    del spec  # the other layers determine how many blocks are cached in a row
    return len(is_cached)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("freeable_blocks", frees_one_block_early),
        ("cached_prefix", hits_without_the_window),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_wrong_spec_would_be_seen(one_subject, monkeypatch, method, wrong):
    monkeypatch.setattr(SlidingWindowSpec, method, wrong)
    assert come_and_go(one_subject)[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("percent", [25, 50, 100])
def test_everything_at_once_in_every_combination(subject, percent):
    for budget, is_async, has_cache, block_size in product(
        (16, 64), (True, False), (True, False), (4, 16)
    ):
        options = {
            "max_num_batched_tokens": budget,
            "async_scheduling": is_async,
            "enable_prefix_caching": has_cache,
            "block_size": block_size,
            "num_kv_blocks": subject.pool(percent, block_size, budget),
        }
        with subject.llm(**options) as llm:
            for _ in range(2):
                completions = tokens(llm.generate(subject.prompts, GREEDY))
                assert completions == subject.expected, options
            assert llm.stats().num_used_blocks == 0, options
