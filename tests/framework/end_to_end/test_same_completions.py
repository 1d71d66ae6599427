"""The same request gets the same completion in every mode of the engine.

Tokens are equal and log probabilities within 1e-4, with the pool at a quarter, a half and all of
what is needed, with and without prefix caching, in chunks, with async scheduling, in a separate
process, with a KV store, and in mixtures of these. `test_truth` compares with transformers.
"""

import random

import pytest
from kernel_options import TORCH

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

MAX_TOKENS = 32
BLOCK_SIZE = 8
NEEDED = 12 * 12  # blocks: twelve requests of up to 8 x 12 tokens
PLAIN = {"enable_prefix_caching": False}
MODES = {
    "quarter": {"num_kv_blocks": NEEDED // 4 + 1},
    "half": {"num_kv_blocks": NEEDED // 2 + 1},
    "whole": {"num_kv_blocks": NEEDED + 1},
    "quarter-uncached": {"num_kv_blocks": NEEDED // 4 + 1} | PLAIN,
    "half-uncached": {"num_kv_blocks": NEEDED // 2 + 1} | PLAIN,
    "chunks-of-7": {"max_num_batched_tokens": 7},
    "chunks-of-33-shared": {"max_num_batched_tokens": 33, "max_num_partial_prefills": 4},
    "no-chunks": {"enable_chunked_prefill": False, "max_num_batched_tokens": 80},
    "async": {"async_scheduling": True},
    "async-quarter": {"async_scheduling": True, "num_kv_blocks": NEEDED // 4 + 1},
    "async-chunks": {"async_scheduling": True, "max_num_batched_tokens": 19},
    "few-at-once": {"max_num_seqs": 3},
    "priority": {"scheduling_policy": "priority", "num_kv_blocks": NEEDED // 4 + 1},
    "process": {"engine_process": True},
    "process-async-quarter": {
        "engine_process": True, "async_scheduling": True, "num_kv_blocks": NEEDED // 4 + 1,
    },
    "store-quarter": {"kv_store": "host_memory", "num_kv_blocks": NEEDED // 4 + 1},
    "store-async-quarter": {
        "kv_store": "host_memory", "async_scheduling": True, "num_kv_blocks": NEEDED // 4 + 1,
    },
}  # fmt: skip

# Each of these is between two of the others, or a part of one of them.
SLOW = ("half", "whole", "async", "process")

# What is not in this list runs the kernels that auto takes.
BY_TORCH = ("quarter", "chunks-of-7", "async-chunks", "store-async-quarter")
BIT_BY_BIT = ("quarter-uncached", "chunks-of-7", "async-chunks", "store-async-quarter")
BIT_BY_BIT_SLOW = ("quarter", "half-uncached", "whole", "async-quarter", "process-async-quarter")


def cases(quick, slow):
    return [*quick, *(pytest.param(mode, marks=pytest.mark.slow) for mode in slow)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    return write_checkpoint(folder, "Qwen3ForCausalLM", seed=11, head_dim=32)


@pytest.fixture(scope="module")
def prompts(checkpoint):
    """Twelve prompts of which most begin alike, one of whole blocks among them."""
    rng = random.Random(3)
    vocab_size = checkpoint.config["vocab_size"]

    def some(count):
        return [rng.randrange(3, vocab_size) for _ in range(count)]

    system, turn = some(24), some(13)
    beginnings = [system, system, system, system + turn, system + turn, [], []]
    lengths = [16, 1, 30, 9, 22, 3, 48]
    first = [start + some(count) for start, count in zip(beginnings, lengths, strict=True)]
    return [*first, first[0], first[2], first[3] + some(11), some(64), system]


def params():
    """Half of them greedy, half random; two end at a token that they are likely to meet."""
    return [
        SamplingParams(
            max_tokens=MAX_TOKENS,
            temperature=0.0 if index % 2 else 0.9,
            top_p=1.0 if index % 3 else 0.95,
            seed=index,
            logprobs=3,
            ignore_eos=True,
            stop_token_ids=() if index % 5 else tuple(range(0, 320, 9)),
        )
        for index in range(12)
    ]


def completions(checkpoint, prompts, **options):
    """Run everything twice, so that the second round may find what the first has left."""
    options = {"block_size": BLOCK_SIZE, "max_model_len": 120} | options
    with LLM(str(checkpoint.folder), dtype="float32", **options) as llm:
        rounds = [llm.generate(prompts, params()) for _ in range(2)]
        stats = llm.stats()
    return [[result.outputs[0] for result in one] for one in rounds], stats


@pytest.fixture(scope="module")
def expected(checkpoint, prompts):
    (first, second), _ = completions(checkpoint, prompts, **PLAIN)
    assert [a.token_ids for a in first] == [a.token_ids for a in second]
    assert any(a.finish_reason == "stop" for a in first)
    assert len({token for a in first for token in a.token_ids}) > 100
    return first


@pytest.fixture(scope="module")
def expected_of_torch(checkpoint, prompts, expected):
    """Completions by torch's operators; greedy ones equal those of this machine's kernels."""
    (first, _), _ = completions(checkpoint, prompts, **PLAIN, **TORCH)
    for wanted, one, other in zip(params(), first, expected, strict=True):
        if wanted.temperature == 0:
            assert_alike(one, other, 1e-4)
    return first


@pytest.fixture(scope="module")
def expected_bits(checkpoint, prompts):
    (first, _), _ = completions(checkpoint, prompts, batch_invariant=True, max_num_seqs=1, **PLAIN)
    return first


def assert_alike(one, other, tolerance):
    assert one.token_ids == other.token_ids
    assert one.finish_reason == other.finish_reason
    for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
        assert list(mine) == list(theirs)
        for token_id, found in mine.items():
            assert abs(found.logprob - theirs[token_id].logprob) <= tolerance


@pytest.mark.parametrize("mode", cases([mode for mode in MODES if mode not in SLOW], SLOW))
def test_a_completion_does_not_depend_on_the_mode(checkpoint, prompts, expected, mode):
    rounds, stats = completions(checkpoint, prompts, **MODES[mode])
    check(mode, rounds, stats, expected)


@pytest.mark.parametrize("mode", BY_TORCH)
def test_with_torchs_operators_it_does_not_either(checkpoint, prompts, expected_of_torch, mode):
    rounds, stats = completions(checkpoint, prompts, **MODES[mode], **TORCH)
    check(mode, rounds, stats, expected_of_torch)


def check(mode, rounds, stats, expected):
    for one_round in rounds:
        for one, other in zip(one_round, expected, strict=True):
            assert_alike(one, other, 1e-4)
    if "store" not in mode:  # which may hold what it saves until the next step
        assert stats.num_used_blocks == 0
    if "quarter" in mode:
        assert stats.num_preemptions > 0
    if MODES[mode].get("enable_prefix_caching", True):
        assert stats.num_prefix_hits > 0
    if "store" in mode:
        assert stats.num_store_hits > 0


@pytest.mark.parametrize("mode", cases(BIT_BY_BIT, BIT_BY_BIT_SLOW))
def test_in_batch_invariant_mode_not_a_bit_depends_on_the_mode(
    checkpoint, prompts, expected_bits, mode
):
    rounds, _ = completions(checkpoint, prompts, batch_invariant=True, **MODES[mode])
    for one_round in rounds:
        for one, other in zip(one_round, expected_bits, strict=True):
            assert_alike(one, other, 0.0)
