"""Randomness is a function of (seed, child, position): nothing else about an engine changes it."""

import asyncio
import random

import msgspec
import pytest
from kernel_options import TORCH

from quire import LLM, AsyncEngine, SamplingParams
from quire.testing.checkpoints import write_checkpoint

NUM_TOKENS = 24
PARAMS = (
    SamplingParams(seed=1, temperature=1.3),
    SamplingParams(seed=2, temperature=0.8, top_k=40, top_p=0.9),
    SamplingParams(seed=2**63 - 1, min_p=0.02, temperature=1.5, logprobs=3),
    SamplingParams(seed=-(2**63), presence_penalty=0.5, repetition_penalty=1.2),
    SamplingParams(seed=0, temperature=2.0, logit_bias={7: 3.0}, bad_words=("a",), min_tokens=9),
    SamplingParams(seed=1, temperature=1.3, prompt_logprobs=1),
    SamplingParams(seed=5, logprob_token_ids=(3, 4), allowed_token_ids=tuple(range(3, 200))),
    SamplingParams(seed=6, extra_args={"mirostat_mode": 2, "mirostat_tau": 4.0}),
    SamplingParams(seed=7, logprobs=1, extra_args={"mirostat_mode": 1, "mirostat_eta": 0.5}),
)
PARAMS = tuple(
    msgspec.structs.replace(params, max_tokens=NUM_TOKENS, ignore_eos=True) for params in PARAMS
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", seed=3).folder)


@pytest.fixture(scope="module", params=[{}, TORCH], ids=["auto", "torch"])
def kernels(request):
    return request.param


@pytest.fixture(scope="module")
def prompts():
    rng = random.Random(7)
    lengths = (1, 3, 17, 33, 40, 5, 48, 21, 30)
    return [[rng.randrange(3, 250) for _ in range(length)] for length in lengths]


def llm_of(folder, **options):
    options = {"dtype": "float32", "max_model_len": 96, "block_size": 8} | options
    return LLM(folder, **options)


def tokens_of(results):
    return [output.token_ids for result in results for output in result.outputs]


@pytest.fixture(scope="module")
def expected(folder, kernels, prompts):
    """The completion of each request, alone in the engine and computed from nothing."""
    with llm_of(folder, enable_prefix_caching=False, max_num_seqs=1, **kernels) as llm:
        pairs = zip(prompts, PARAMS, strict=True)
        found = [tokens_of(llm.generate(prompt, params)) for prompt, params in pairs]
    tokens = [token_ids for (token_ids,) in found]
    assert len({token for token_ids in tokens for token in token_ids}) > 60
    return tokens


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"async_scheduling": True},
        {"num_kv_blocks": 18},
        {"num_kv_blocks": 18, "async_scheduling": True, "max_num_batched_tokens": 19},
        {"enforce_eager": True},
        {"logprobs_mode": "processed_logprobs"},
        {"engine_process": True},
    ],
    ids=str,
)
def test_neither_batches_nor_chunks_nor_preemptions_nor_hits_change_it(
    folder, kernels, prompts, expected, options
):
    with llm_of(folder, **kernels, **options) as llm:
        order = list(range(len(prompts)))
        for _ in range(3):  # from the second time on with prefix hits
            results = llm.generate([prompts[i] for i in order], [PARAMS[i] for i in order])
            assert tokens_of(results) == [expected[i] for i in order]
            random.Random(5).shuffle(order)
        if "num_kv_blocks" in options:
            assert llm.stats().num_preemptions > 0


def test_a_completion_goes_on_as_if_it_had_not_been_cut(folder, kernels, prompts, expected):
    """A prompt with the first tokens of a completion behind it samples the others."""
    with llm_of(folder, **kernels) as llm:
        for index in (0, 1, 2):  # penalties and min_tokens count from the beginning
            for num_given in (1, 8, NUM_TOKENS - 1):
                given, rest = expected[index][:num_given], expected[index][num_given:]
                params = msgspec.structs.replace(PARAMS[index], max_tokens=len(rest))
                assert tokens_of(llm.generate([[*prompts[index], *given]], params)) == [rest]


def test_children_of_n_and_best_of_are_the_same(folder, kernels, prompts):
    params = msgspec.structs.replace(PARAMS[0], n=5)
    with llm_of(folder, **kernels) as llm:
        (all_five,) = llm.generate([prompts[3]], params)
        children = [output.token_ids for output in all_five.outputs]
        assert len(set(map(tuple, children))) == 5
        (three,) = llm.generate([prompts[3]], msgspec.structs.replace(params, n=3))
        assert [output.token_ids for output in three.outputs] == children[:3]
        best = msgspec.structs.replace(params, n=4, best_of=5)
        (found,) = llm.generate([prompts[3]], best)
        ranks = [children.index(output.token_ids) for output in found.outputs]
        assert len(set(ranks)) == 4


def test_streams_and_whole_results_are_the_same(folder, kernels, prompts, expected):
    async def stream(engine, prompt, params):
        deltas = [delta async for delta in engine.generate(prompt, params)]
        return [token_id for delta in deltas for token_id in delta.token_ids]

    async def main():
        engine = AsyncEngine(folder, dtype="float32", max_model_len=96, block_size=8, **kernels)
        try:
            pairs = zip(prompts, PARAMS, strict=True)
            return await asyncio.gather(*(stream(engine, *pair) for pair in pairs))
        finally:
            await engine.shutdown()

    assert asyncio.run(main()) == expected


def test_another_seed_gives_other_tokens(folder, kernels, prompts, expected):
    with llm_of(folder, **kernels) as llm:
        params = [msgspec.structs.replace(each, seed=11) for each in PARAMS]
        found = tokens_of(llm.generate(prompts, params))
    assert all(mine != theirs for mine, theirs in zip(found, expected, strict=True))


def test_all_kernels_give_the_same_tokens(folder, prompts):
    found, names = [], []
    for options in ({}, TORCH):
        with llm_of(folder, **options) as llm:
            found.append(tokens_of(llm.generate(prompts, PARAMS)))
            names.append(llm.composition.samplers[-1].name)
    assert len(set(names)) == 2
    assert found[0] == found[1]
