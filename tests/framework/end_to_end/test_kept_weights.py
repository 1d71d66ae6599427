"""Weights of whole engines: `auto` keeps every value of a checkpoint; a named method may round."""

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

pytestmark = NEEDS_COMPILER

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with bfloat16 in its config, and float32 tensors that bfloat16 would round."""
    folder = tmp_path_factory.mktemp("m")
    return str(write_checkpoint(folder, "Qwen3ForCausalLM", torch_dtype="bfloat16").folder)


def logprobs(folder, **options):
    with LLM(folder, dtype="float32", kernels="native", **options) as llm:
        (output,) = llm.generate([[5, 6, 7, 8]], PARAMS)
        rows = output.outputs[0].logprobs
        method = llm.composition.quantization.value
    return method, [entry.logprob for row in rows for entry in row.values()]


def test_auto_keeps_float32_tensors_of_a_checkpoint_that_says_bfloat16(folder):
    unquantized, exact = logprobs(folder, quantization="none")
    chosen, kept = logprobs(folder)
    named, rounded = logprobs(folder, quantization="bf16")
    assert (unquantized, chosen.name, named.name) == (None, "bf16", "bf16")
    assert kept == pytest.approx(exact, abs=1e-5)
    assert rounded != pytest.approx(exact, abs=1e-4)
