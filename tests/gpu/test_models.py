"""Whole models on a GPU against transformers, with the same weights.

float32: the same greedy tokens. bfloat16: each token of a long text is predicted after the same
text, and its log probability is near that of the reference in float32 with the same rounded
weights. These small random models magnify rounding: plain torch in bfloat16 is off by 0.08 on
average, by 0.75 at most, and twice and five times that where K and V are kept in 8 bits. So the
limits are half as much again; and where the reference's likeliest token leads the next by four
times the average, 97 in 100 predictions are the same, or all but one.
"""

import random

import pytest
import torch
from transformers_model import greedy_tokens, transformers_model

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

NUM_TOKENS = 32
TEXT_LEN = 300
MODELS = {
    "llama": ("LlamaForCausalLM", {"head_dim": 32}),
    "qwen2": ("Qwen2ForCausalLM", {"head_dim": 32}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 64, "num_attention_heads": 8}),
    "gemma3": ("Gemma3ForCausalLM", {"head_dim": 32}),
}
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPT_LENGTHS = (1, 15, 16, 17, 40, 70, 129)
LIMITS = {"auto": (0.12, 1.2), "int8": (0.2, 2.0), "fp8": (0.6, 5.0)}  # on average, at most


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory):
    architecture, config = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return write_checkpoint(folder, architecture, seed=3, **config)


@pytest.fixture(scope="module")
def reference(checkpoint):
    return transformers_model(checkpoint.folder)


@pytest.fixture(scope="module")
def prompts(checkpoint):
    rng = random.Random(5)
    vocab_size = checkpoint.config["vocab_size"]
    return [[rng.randrange(3, vocab_size) for _ in range(n)] for n in PROMPT_LENGTHS]


def engine(checkpoint, **options):
    return LLM(str(checkpoint.folder), max_model_len=512, max_num_seqs=8, **options)


@pytest.fixture(scope="module")
def rounded(checkpoint):
    """The reference with weights as bfloat16 holds them, computing in float32."""
    model = transformers_model(checkpoint.folder)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model


@pytest.mark.parametrize("name", ["graphs", "eager", "chunks", "few blocks", "async"])
def test_in_float32_the_tokens_are_those_of_transformers(
    checkpoint, reference, prompts, on_device, name
):
    options = {
        "graphs": {},
        "eager": {"enforce_eager": True},
        "chunks": {"max_num_batched_tokens": 24},
        "few blocks": {"num_kv_blocks": 16},
        "async": {"async_scheduling": True},
    }[name]
    expected = [greedy_tokens(reference, prompt, NUM_TOKENS) for prompt in prompts]
    with engine(checkpoint, dtype="float32", **{**on_device, **options}) as llm:
        outputs = llm.generate(prompts, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == expected


@pytest.mark.parametrize("kv_cache_dtype", LIMITS)
def test_in_bfloat16_predictions_agree(checkpoint, rounded, in_bfloat16, kv_cache_dtype):
    rng = random.Random(7)
    text = [rng.randrange(3, checkpoint.config["vocab_size"]) for _ in range(TEXT_LEN)]
    with torch.inference_mode():
        logprobs = rounded(torch.tensor([text])).logits[0, :-1].float().log_softmax(-1)
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    with engine(checkpoint, kv_cache_dtype=kv_cache_dtype, **in_bfloat16) as llm:
        found = llm.generate(text, params)[0].prompt_logprobs
    gaps, is_equal = [], []
    for position, token_id in enumerate(text[1:]):
        entries = found[position + 1]
        best = max(entries, key=lambda each: entries[each].logprob)
        is_equal.append(best == int(logprobs[position].argmax()))
        gaps.append(abs(entries[token_id].logprob - float(logprobs[position, token_id])))
    average = sum(gaps) / len(gaps)
    assert average <= LIMITS[kv_cache_dtype][0]
    assert max(gaps) <= LIMITS[kv_cache_dtype][1]
    first, second = logprobs.topk(2).values.T
    decided = [
        equal for equal, lead in zip(is_equal, first - second, strict=True) if lead > 4 * average
    ]
    assert len(decided) >= 5
    assert decided.count(False) <= max(1, 0.03 * len(decided))
