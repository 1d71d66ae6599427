"""Worker processes give the completions of one process, whatever else the engine does.

Each grid has one engine that prefills in chunks, preempts, finds prefixes in the cache and in a KV
store, samples in every way, follows a grammar and applies an adapter, all in the same steps.
"""

import json
import random
import re

import pytest
from grid_scenarios import SHAPES, write_random_adapter, write_shape
from kernel_options import TORCH

from quire import LLM, SamplingParams, StructuredOutputsParams
from quire.testing.checkpoints import write_checkpoint

BLOCK_SIZE = 8
TIGHT = {
    "num_kv_blocks": 40,
    "max_num_batched_tokens": 33,
    "max_num_partial_prefills": 3,
    "kv_store": "host_memory",
}
MODES = {
    "tight": TIGHT,
    "roomy": {},
    "async": TIGHT | {"async_scheduling": True},
    "process": TIGHT | {"engine_process": True},
    "torch": TIGHT | TORCH,
    "bf16": {"quantization": "bf16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "batch-invariant": TIGHT | {"batch_invariant": True},
}
GRIDS = {"tp2": (2, 1), "pp2": (1, 2), "tp2-pp2": (2, 2), "tp4": (4, 1), "tp4-pp2": (4, 2)}
# Ranks in threads show the other modes and grids in test_worker.py, in less time.
QUICK = [("tight", "tp2-pp2"), ("batch-invariant", "tp2")]
WIDE_GROUPS = [("int8", "tp4"), ("int8", "tp4-pp2")]  # a scale's 128 weights are on two ranks
SLOW = [
    (mode, grid) for mode in MODES for grid in GRIDS if (mode, grid) not in (*QUICK, *WIDE_GROUPS)
]
PLACE = r"[a-z]{3}-[0-9]{2}"
IN_FORM = StructuredOutputsParams(regex=PLACE)


def cases(quick, slow):
    return [*quick, *(pytest.param(*case, marks=pytest.mark.slow) for case in slow)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    written = write_checkpoint(
        folder,
        "Qwen3ForCausalLM",
        seed=11,
        head_dim=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
    )
    write_random_adapter(written, 0)
    return written


@pytest.fixture(scope="module")
def prompts():
    """Prompts of which most begin alike."""
    rng = random.Random(3)

    def some(count):
        return [rng.randrange(3, 320) for _ in range(count)]

    system = some(24)
    first = [system + some(count) for count in (16, 1, 30, 9)]
    return [*first, first[0], some(5), some(48), some(13), system]


def params():
    def of(**values):
        return SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "logprobs": 2, **values})

    return [
        of(temperature=0),
        of(temperature=0.9, top_p=0.9, seed=1, n=3),
        of(temperature=0, prompt_logprobs=2),
        of(temperature=1.2, seed=2),
        of(temperature=0.8, seed=3, logprobs=None),
        of(temperature=0, ignore_eos=False, structured_outputs=IN_FORM),
        of(temperature=0.9, seed=4, min_p=0.01, top_k=50),
        of(temperature=0),
        of(temperature=0.7, seed=5, n=2, extra_args={"mirostat_mode": 2, "mirostat_tau": 3.0}),
    ]  # fmt: skip


ADAPTERS = [None, None, None, None, None, None, "style", "style", None]


def completions(checkpoint, prompts, **options):
    """Run everything twice, so that the second round may find what the first has left."""
    options = {
        "dtype": "float32",
        "block_size": BLOCK_SIZE,
        "max_model_len": 120,
        "enable_lora": True,
        "lora_modules": (f"style={checkpoint.folder}/adapter-0",),
        **options,
    }
    with LLM(str(checkpoint.folder), **options) as llm:
        rounds = [llm.generate(prompts, params(), lora_request=ADAPTERS) for _ in range(2)]
        return rounds, llm.stats()


@pytest.fixture(scope="module")
def expected(checkpoint, prompts):
    """Completions of one process, for each choice of kernels and weights."""
    found = {}

    def of(mode):
        options = {
            key: value
            for key, value in MODES[mode].items()
            if key not in TIGHT and key not in ("async_scheduling", "engine_process")
        }
        key = json.dumps(options)
        if key not in found:
            (first, second), _ = completions(checkpoint, prompts, **options)
            assert_alike(second, first)
            found[key] = first
        return found[key]

    return of


def assert_alike(outputs, expected):
    for one, other in zip(outputs, expected, strict=True):
        assert_near(one.prompt_logprobs, other.prompt_logprobs)
        for mine, theirs in zip(one.outputs, other.outputs, strict=True):
            assert mine.token_ids == theirs.token_ids
            assert mine.finish_reason == theirs.finish_reason
            assert_near(mine.logprobs, theirs.logprobs)


def assert_near(found, expected):
    assert (found is None) == (expected is None)
    for mine, theirs in zip(found or (), expected or (), strict=True):
        assert list(mine or ()) == list(theirs or ())
        for token_id, logprob in (mine or {}).items():
            assert logprob.logprob == pytest.approx(theirs[token_id].logprob, abs=1e-4)


def check_requests(outputs):
    """Check that the requests show what they are for."""
    assert len({tuple(each.token_ids) for each in outputs[1].outputs}) == 3
    assert re.fullmatch(PLACE, outputs[5].outputs[0].text)
    assert len(outputs[2].prompt_logprobs) == len(outputs[2].prompt_token_ids)


@pytest.mark.parametrize(("mode", "grid"), cases(QUICK, SLOW))
def test_a_grid_of_processes_gives_the_completions_of_one(
    checkpoint, prompts, expected, mode, grid
):
    tp_size, pp_size = GRIDS[grid]
    rounds, stats = completions(
        checkpoint,
        prompts,
        tensor_parallel_size=tp_size,
        pipeline_parallel_size=pp_size,
        **MODES[mode],
    )
    check_requests(expected(mode))
    for outputs in rounds:
        assert_alike(outputs, expected(mode))
    assert stats.num_prefix_hits > 0
    if "num_kv_blocks" in MODES[mode]:
        assert stats.num_preemptions > 0
        assert stats.num_store_hits > 0


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["tp2", "pp2", "tp2-pp2"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "qwen3"])
def test_other_architectures_do_so_too(tmp_path, prompts, shape, grid):
    written = write_shape(tmp_path / shape, shape)
    sizes = dict(zip(("tensor_parallel_size", "pipeline_parallel_size"), GRIDS[grid], strict=True))
    (expected, _), _ = completions(written, prompts, **MODES["roomy"])
    options = {**MODES["tight"], "num_kv_blocks": 60} if shape == "gemma3" else MODES["tight"]
    rounds, _ = completions(written, prompts, **sizes, **options)
    for outputs in rounds:
        assert_alike(outputs, expected)
