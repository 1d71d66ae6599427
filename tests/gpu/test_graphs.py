"""Captured decode steps: the same answers as kernel by kernel, and nothing waits for the device."""

import random

import pytest
import torch

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=1.1, top_p=0.9, top_k=50, seed=4, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.7, min_p=0.05, seed=5, max_tokens=25, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=14, logprobs=3, ignore_eos=True),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("qwen3"), "Qwen3ForCausalLM", seed=11, head_dim=32
    )


@pytest.fixture(scope="module")
def prompts(checkpoint):
    draw = random.Random(3)
    vocab_size = checkpoint.config["vocab_size"]
    lengths = [5, 40, 17, 1, 64]
    return [[draw.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def answers(checkpoint, prompts, **options):
    with LLM(
        str(checkpoint.folder), dtype="float32", max_model_len=256, max_num_seqs=8, **options
    ) as llm:
        outputs = llm.generate(prompts, PARAMS)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("ahead", [False, True])
def test_graphs_change_no_answer(checkpoint, prompts, on_device, ahead):
    options = {**on_device, "async_scheduling": ahead}
    eager = answers(checkpoint, prompts, enforce_eager=True, **options)
    assert answers(checkpoint, prompts, **options) == eager
    assert answers(checkpoint, prompts, max_cuda_graph_size=2, **options) == eager


def test_no_step_waits_for_the_device(checkpoint, prompts, on_device):
    if on_device["device"] != "cuda":
        pytest.skip("a CPU has nothing to wait for")
    llm = LLM(str(checkpoint.folder), max_model_len=256, max_num_seqs=8, **on_device)
    with llm:
        llm.generate(prompts, PARAMS)  # what is compiled at first use is compiled now
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            llm.generate(prompts, PARAMS)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
