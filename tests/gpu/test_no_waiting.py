"""No step waits for the device, whatever its requests need: torch raises where one would.

Such an error would be isolated, its step computed in another way, and the completion returned; so
nothing that quire logs may be a warning either.
"""

import logging
import random
from contextlib import contextmanager

import pytest
import torch
from adapter_parts import peft_model, save_adapter
from gpu_tests import ON_CPU
from installed import sites

from quire import LLM, SamplingParams
from quire.sampling_params import StructuredOutputsParams
from quire.testing.checkpoints import write_checkpoint
from quire.testing.sampling.no_waiting import sync_refused

site = pytest.fixture(sites)

SIZES = {"max_model_len": 256, "max_num_seqs": 8, "dtype": "bfloat16"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "is": {"type": "boolean"}},
    "required": ["n", "is"],
    "additionalProperties": False,
}
STEP = """
    import torch
    from quire import hookimpl
    from quire.interfaces.sampling import LogitsProcessor, RequestField, SamplerCapabilities

    class Least(LogitsProcessor):
        \"\"\"Drops what is less likely than a number; the likeliest token stays.\"\"\"

        def is_neutral(self, fields):
            return fields["least"] == 0

        def apply(self, logits, rows):
            is_best = logits == logits.amax(-1, keepdim=True)
            is_rare = (logits.softmax(-1) < rows.field("least")) & ~is_best
            return logits.masked_fill(is_rare, -torch.inf)

    @hookimpl
    def register_samplers(registry):
        fields = (RequestField("least", float, 0.0, 0.0, 1.0, "Least probability."),)
        there = SamplerCapabilities(stage="filter", fields=fields)
        registry.add("least", "least_step:Least", capabilities=there)
"""


def params(**more):
    return SamplingParams(**{"max_tokens": 12, "seed": 1, "ignore_eos": True, **more})


def constrained(**wanted):
    return params(structured_outputs=StructuredOutputsParams(**wanted), ignore_eos=False)


ORDINARY = [
    params(temperature=0),
    params(temperature=0.8),
    params(temperature=1.1, top_p=0.9, top_k=50),
    params(temperature=0.7, min_p=0.05),
    params(temperature=0, logprobs=3),
]
SAMPLING_NEEDS = {
    "ordinary": ORDINARY,
    "logprobs": [params(logprobs=5), params(temperature=0, logprobs=0), *ORDINARY[:3]],
    "prompt_logprobs": [params(prompt_logprobs=2, max_tokens=4), *ORDINARY[:4]],
    "min_tokens": [
        params(min_tokens=8, ignore_eos=False, stop_token_ids=tuple(range(0, 320, 3))),
        *ORDINARY[:4],
    ],
    "regex": [constrained(regex="[ab]{3,9}c"), *ORDINARY[:4]],
    "schema": [constrained(json=SCHEMA), constrained(choice=("yes", "no")), *ORDINARY[:3]],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    return write_checkpoint(folder, "Qwen3ForCausalLM", seed=11, head_dim=32)


@pytest.fixture(scope="module")
def prompts():
    rng = random.Random(3)
    return [[rng.randrange(3, 320) for _ in range(length)] for length in (5, 40, 17, 1, 64)]


@contextmanager
def no_waiting():
    """Inside, torch raises where the host would wait; where there is no GPU, nothing is shown."""
    if ON_CPU:
        yield
        return
    with sync_refused():
        yield


def run_twice(llm, prompts, needs, caplog, **more):
    """Once to compile what is compiled at first use, and once without waiting."""
    llm.generate(prompts, needs, **more)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="quire"), no_waiting():
        outputs = llm.generate(prompts, needs, **more)
    assert not caplog.records, [record.getMessage() for record in caplog.records]
    assert {output.outputs[0].finish_reason for output in outputs} <= {"length", "stop"}


@pytest.mark.skipif(ON_CPU, reason="a CPU has nothing to wait for")
def test_waiting_would_be_noticed():
    number = torch.ones(1, device="cuda")
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        number.item()


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("needs", SAMPLING_NEEDS)
def test_no_step_waits(checkpoint, prompts, on_device, needs, async_scheduling, caplog):
    options = {**SIZES, **on_device, "async_scheduling": async_scheduling}
    with LLM(str(checkpoint.folder), **options) as llm:
        run_twice(llm, prompts, SAMPLING_NEEDS[needs], caplog)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_no_step_with_adapters_waits(
    checkpoint, prompts, on_device, async_scheduling, caplog, tmp_path
):
    folder = save_adapter(peft_model(checkpoint, "one"), "one", tmp_path)
    options = {**SIZES, **on_device, "async_scheduling": async_scheduling, "enable_lora": True}
    with LLM(str(checkpoint.folder), lora_modules=(f"one={folder}",), **options) as llm:
        named = ["one", None, "one", None, "one"]
        run_twice(llm, prompts, ORDINARY, caplog, lora_request=named)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_no_step_waits_for_a_kv_store(checkpoint, on_device, async_scheduling, caplog):
    """The pool holds one request, so the store keeps what is found again."""
    store = {"kv_store": "host_memory", "kv_store_options": ("max_bytes=64MiB",)}
    options = {
        **SIZES,
        **on_device,
        **store,
        "async_scheduling": async_scheduling,
        "num_kv_blocks": 18,
    }
    rng = random.Random(5)
    longer = [[rng.randrange(3, 320) for _ in range(120)] for _ in range(4)]
    with LLM(str(checkpoint.folder), **options) as llm:
        run_twice(llm, longer, params(temperature=0), caplog)
        assert llm.stats().num_store_hits > 0


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_no_step_waits_for_a_strangers_sampler_step(
    checkpoint, prompts, on_device, async_scheduling, caplog, site
):
    site.install("least", STEP, module="least_step")
    options = {
        **SIZES,
        **on_device,
        "async_scheduling": async_scheduling,
        "samplers": ("default", "least"),
    }
    needs = [params(extra_args={"least": 0.01}), *ORDINARY[:4]]
    with LLM(str(checkpoint.folder), **options) as llm:
        run_twice(llm, prompts, needs, caplog)
