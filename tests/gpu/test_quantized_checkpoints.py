"""Models with kept codes on a GPU: captured steps, no waiting, and the dequantized weights' logits.

In bfloat16 the dequantized weights are rounded once more than codes are, so logits agree within the
rounding of the compute dtype; in float32 they are the same but for the order of sums.
"""

import random
from dataclasses import replace

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from gpu_tests import ON_CPU
from quantized_checkpoints import KINDS, write_quantized

from quire import LLM, SamplingParams
from quire.testing.sampling.no_waiting import sync_refused

MODELS = {"LlamaForCausalLM": "gptq-act-order", "Qwen3MoeForCausalLM": "awq"}
SIZES = {"max_model_len": 256, "max_num_seqs": 8}
LENGTHS = (3, 1) if ON_CPU else (5, 40, 17, 1, 64)  # of prompts; the interpreter is slow
GREEDY = SamplingParams(temperature=0, max_tokens=2 if ON_CPU else 12, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module", params=MODELS)
def folders(request, tmp_path_factory):
    """Return a checkpoint with dequantized weights, and the quantized one."""
    folder, kind = tmp_path_factory.mktemp(request.param), KINDS[MODELS[request.param]]
    case = next(iter(CASES[request.param].values()))
    case = replace(case, options={**case.options, "head_dim": 32})
    plain, quantized = write_family(folder / "plain", case).folder, folder / "quantized"
    write_quantized(plain, quantized, kind, lambda name: name.endswith("_proj.weight"))
    return plain, quantized


@pytest.fixture(scope="module")
def prompts():
    rng = random.Random(3)
    return [[rng.randrange(3, 90) for _ in range(length)] for length in LENGTHS]


def logprobs(llm, prompts):
    outputs = [output.outputs[0] for output in llm.generate(prompts, GREEDY)]
    return torch.tensor([[next(iter(p.values())).logprob for p in o.logprobs] for o in outputs])


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_in_float32_a_model_computes_as_with_its_dequantized_weights(
    folders, prompts, on_device, enforce_eager
):
    options = {**SIZES, **on_device, "dtype": "float32", "enforce_eager": enforce_eager}
    found, weights = [], []
    for folder in folders:
        with LLM(str(folder), **options) as llm:
            weights.append(llm.composition.weights)
            found.append(logprobs(llm, prompts))
    assert weights[1].startswith("triton_codes (")
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(ON_CPU, reason="a CPU has nothing to wait for, and does not run bfloat16")
def test_in_bfloat16_no_step_waits_and_batch_invariant_rows_keep_their_bits(
    folders, prompts, on_device
):
    options = {**SIZES, **on_device, "dtype": "bfloat16", "batch_invariant": True}
    with LLM(str(folders[1]), **options) as llm:
        together = logprobs(llm, prompts)
        with sync_refused():
            again = logprobs(llm, prompts)
        alone = torch.cat([logprobs(llm, [prompt]) for prompt in prompts])
    assert torch.equal(together, again)
    assert torch.equal(together, alone)
