"""Any requests, also preempted ones, get the tokens of steps through Python from CPU graphs."""

from contextlib import ExitStack
from typing import Any

import pytest
from cpp_compilers import NEEDS_COMPILER
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_options import NATIVE

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

pytestmark = NEEDS_COMPILER

LEAST = 3  # generated tokens of a request
PROMPTS = st.lists(st.integers(3, 200), min_size=1, max_size=40)
FURTHER: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 0.7, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0.8, "logprobs": 1},  # these and the following are sampled through Python
    {"temperature": 0.6, "repetition_penalty": 1.3},
    {"min_tokens": LEAST, "ignore_eos": False},
]
REQUESTS = st.lists(
    st.tuples(PROMPTS, st.integers(LEAST, 24), st.integers(0, 99), st.sampled_from(FURTHER)),
    min_size=1,
    max_size=10,
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """An engine without CPU graphs and one with, with room for a part of the requests."""
    folder = write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM").folder
    options = NATIVE | {
        "max_model_len": 64, "max_num_seqs": 6, "max_num_batched_tokens": 48, "num_kv_blocks": 14,
    }  # fmt: skip
    with ExitStack() as stack:
        yield [
            stack.enter_context(LLM(str(folder), enforce_eager=eager, **options))
            for eager in (True, False)
        ]


def tokens(llm: LLM, requests: list[tuple[list[int], int, int, dict[str, Any]]]) -> list[Any]:
    params = [
        SamplingParams(**{"temperature": 0, "ignore_eos": True} | more, max_tokens=count, seed=seed)
        for _, count, seed, more in requests
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt, *_ in requests]
    found = [output.outputs[0] for output in llm.generate(prompts, params)]
    return [(each.token_ids, each.logprobs, each.finish_reason) for each in found]


@settings(deadline=None, max_examples=25)
@given(requests=REQUESTS)
def test_any_requests_get_the_same_tokens_by_replays(engines, requests):
    plain, replaying = engines
    assert tokens(replaying, requests) == tokens(plain, requests)


def test_requests_were_preempted_and_replayed(engines):
    plain, replaying = engines
    requests = [([5 + i] * 30, 24, i, FURTHER[i % 4]) for i in range(6)]
    assert tokens(replaying, requests) == tokens(plain, requests)
    assert replaying.stats().num_preemptions > 0
    graphs = replaying._running.core.runner.graphs
    assert graphs is not None
    assert all(step.sample is not None for step in graphs._steps.values())
    assert plain._running.core.runner.graphs is None
