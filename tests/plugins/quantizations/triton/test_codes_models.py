"""Whole models with kept codes, against the same models with the dequantized weights."""

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from kernel_device import ONLY_INTERPRETED
from quantized_checkpoints import KINDS, write_quantized

from quire import LLM, SamplingParams

pytestmark = ONLY_INTERPRETED
OPTIONS = {
    "device": "cpu",
    "dtype": "float32",
    "kernels": "triton",
    "attention_backend": "torch_sdpa",
    "max_model_len": 64,
    "num_kv_blocks": 16,
    "max_num_seqs": 1,
}
PARAMS = SamplingParams(temperature=0, max_tokens=1, logprobs=2, ignore_eos=True)


def completions(folder, **options):
    with LLM(str(folder), **OPTIONS, **options) as llm:
        outputs = llm.generate([[5, 9, 40, 7]], PARAMS)
        return llm.composition.weights, [output.outputs[0] for output in outputs]


@pytest.mark.parametrize(
    ("family", "kind", "options"),
    [
        ("Qwen3MoeForCausalLM", "awq", {}),
        pytest.param("LlamaForCausalLM", "gptq-act-order", {}, marks=pytest.mark.slow),
        pytest.param(
            "Qwen3MoeForCausalLM", "gptq-8", {"batch_invariant": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_model_computes_as_with_its_dequantized_weights(tmp_path, family, kind, options):
    written = write_family(tmp_path / "plain", next(iter(CASES[family].values())))
    write_quantized(
        written.folder,
        tmp_path / "quantized",
        KINDS[kind],
        lambda name: name.endswith("_proj.weight"),
    )
    _, expected = completions(written.folder, **options)
    weights, found = completions(tmp_path / "quantized", **options)
    assert weights == f"triton_codes (the checkpoint's own: {kind.partition('-')[0]})"
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        logprobs = [[p.logprob for p in each.values()] for each in one.logprobs]
        wanted = [[p.logprob for p in each.values()] for each in other.logprobs]
        torch.testing.assert_close(torch.tensor(logprobs), torch.tensor(wanted))
