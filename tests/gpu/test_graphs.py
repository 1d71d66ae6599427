"""Captured decode steps give the same completions as separate kernels, and are really replayed."""

import random

import pytest
from adapter_parts import peft_model, save_adapter
from gpu_tests import ON_CPU
from recorded_engine import record, runner_of

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=1.1, top_p=0.9, top_k=50, seed=4, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.7, min_p=0.05, seed=5, max_tokens=25, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=14, logprobs=3, ignore_eos=True),
]
SIZES = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("qwen3"), "Qwen3ForCausalLM", seed=11, head_dim=32
    )


@pytest.fixture(scope="module")
def adapters(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    named = {}
    for name in ("one", "two"):
        named[name] = save_adapter(peft_model(checkpoint, name), name, folder)
    return tuple(f"{name}={path}" for name, path in named.items())


@pytest.fixture(scope="module")
def prompts(checkpoint):
    rng = random.Random(3)
    vocab_size = checkpoint.config["vocab_size"]
    lengths = [5, 40, 17, 1, 64]
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


class Replays:
    """Counts the steps of an engine, and those of them that a captured one computed."""

    def __init__(self, llm, monkeypatch):
        self.num_steps, self.num_replayed = 0, 0
        self.sizes, self.with_adapters = set(), set()
        if ON_CPU:
            record(llm, [2, 8])
        graphs = runner_of(llm).graphs
        assert graphs is not None, "no step was captured"
        step_for, step_of = graphs.step_for, graphs.step_of

        def counted(requests):
            found = step_for(requests)
            self.num_steps += 1
            self.num_replayed += found is not None
            return found

        def noted(num_requests, *, uses_adapters):
            self.sizes.add(num_requests)
            self.with_adapters.add(uses_adapters)
            return step_of(num_requests, uses_adapters=uses_adapters)

        monkeypatch.setattr(graphs, "step_for", counted)
        monkeypatch.setattr(graphs, "step_of", noted)


def tokens(llm, prompts, adapters=None):
    outputs = llm.generate(prompts, PARAMS, lora_request=adapters)
    return [output.outputs[0].token_ids for output in outputs]


def completions(checkpoint, prompts, adapters=None, **options):
    with LLM(str(checkpoint.folder), **SIZES, **options) as llm:
        return tokens(llm, prompts, adapters)


def assert_no_failure(caplog):
    """If a captured step fails, isolation computes its requests in another way, and logs it."""
    logged = [r.getMessage() for r in caplog.records if r.name.startswith("quire")]
    assert not [text for text in logged if "failed" in text or "cannot" in text], logged


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_graphs_change_no_completion(
    checkpoint, prompts, on_device, async_scheduling, monkeypatch, caplog
):
    options = {**on_device, "async_scheduling": async_scheduling}
    eager = completions(checkpoint, prompts, enforce_eager=True, **options)
    for some, num_replayed in (({}, 20), ({"max_cuda_graph_size": 2}, 5)):
        with LLM(str(checkpoint.folder), **SIZES, **some, **options) as llm:
            replays = Replays(llm, monkeypatch)
            assert tokens(llm, prompts) == eager
        assert num_replayed <= replays.num_replayed < replays.num_steps, vars(replays)
        assert replays.sizes == {1, 2, 3, 4, 5}, "every number of requests"
        assert replays.with_adapters == {False}
    assert_no_failure(caplog)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_graphs_change_no_completion_of_an_adapter(
    checkpoint, adapters, prompts, on_device, async_scheduling, monkeypatch, caplog
):
    options = {"enable_lora": True, "lora_modules": adapters, "async_scheduling": async_scheduling}
    options |= on_device
    named = ["one", None, "two", "one", None]
    eager = completions(checkpoint, prompts, named, enforce_eager=True, **options)
    plain = completions(checkpoint, prompts, enforce_eager=True, **options)
    assert [mine == theirs for mine, theirs in zip(eager, plain, strict=True)] == [
        name is None for name in named
    ], "every adapter says something else"
    with LLM(str(checkpoint.folder), **SIZES, **options) as llm:
        replays = Replays(llm, monkeypatch)
        assert tokens(llm, prompts, named) == eager
        assert replays.num_replayed >= 20, vars(replays)
        assert replays.with_adapters == {False, True}, "the last request has no adapter"
        replays.with_adapters.clear()
        assert tokens(llm, prompts) == plain
        assert replays.with_adapters == {False}
    assert_no_failure(caplog)
