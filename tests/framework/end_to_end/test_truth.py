"""The whole engine against transformers: the same tokens, however the work is cut and mixed.

Tests that do not name kernels run those that auto takes.
"""

import random
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from adapter_parts import peft_model, save_adapter
from cpp_compilers import NEEDS_COMPILER
from kernel_options import BY_EITHER, NATIVE, OWN_BACKEND, TORCH
from transformers_model import greedy_tokens, transformers_model

from quire import LLM, SamplingParams
from quire.outputs import LoRARequest
from quire.testing.checkpoints import write_checkpoint

NUM_TOKENS = 40
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-mqa-biases": (
        "LlamaForCausalLM",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-llama3-tied": (
        "LlamaForCausalLM",
        {"rope_scaling": LLAMA3, "tie_word_embeddings": True, "head_dim": 24},
    ),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2-linear": (
        "Qwen2ForCausalLM",
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "num_key_value_heads": 4},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3-gqa-4-tied": (
        "Qwen3ForCausalLM",
        {"num_attention_heads": 8, "head_dim": 16, "tie_word_embeddings": True},
    ),
}
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPT_LENGTHS = (1, 2, 5, 15, 16, 17, 23, 31, 32, 33, 40, 47, 48, 49, 64, 70)


class Subject:
    """A checkpoint, prompts, and the completion by transformers for each."""

    def __init__(self, folder, architecture, config):
        self.checkpoint = write_checkpoint(folder, architecture, seed=3, **config)
        rng = random.Random(5)
        vocab_size = self.checkpoint.config["vocab_size"]
        self.prompts = [
            [rng.randrange(3, vocab_size) for _ in range(length)] for length in PROMPT_LENGTHS
        ]
        self.expected = self._run_transformers()

    def llm(self, **options: Any) -> LLM:
        return LLM(str(self.checkpoint.folder), dtype="float32", max_model_len=160, **options)

    def _run_transformers(self):
        model = transformers_model(self.checkpoint.folder)
        return [greedy_tokens(model, prompt, NUM_TOKENS) for prompt in self.prompts]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    """Each model, made on first use."""
    return cache(lambda name: Subject(tmp_path_factory.mktemp(name), *MODELS[name]))


@pytest.fixture(scope="module", params=MODELS)
def subject(request, subjects):
    return subjects(request.param)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(NATIVE, marks=NEEDS_COMPILER, id="native"),
        pytest.param(TORCH, id="torch"),
    ],
)
def uncached(request, subject):
    """An engine for several tests, without prefix caching."""
    with subject.llm(enable_prefix_caching=False, **request.param) as llm:
        yield llm


@pytest.fixture(scope="module")
def one_subject(subjects):
    return subjects("qwen3")


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_the_reference_completions_are_varied(subject):
    assert all(len(set(completion)) >= NUM_TOKENS // 2 for completion in subject.expected[8:])


def test_by_default_the_kernels_of_this_machine_are_used(one_subject):
    with one_subject.llm() as llm:
        parts = {choice.role: choice.name for choice in llm.composition.choices}
    assert parts["attention backend"] == OWN_BACKEND


def test_alone_each_completion_is_that_of_transformers(subject, uncached):
    """The shortest and the longest, and those around a block; batches have the others."""
    for length in (1, 15, 16, 17, 70):
        index = PROMPT_LENGTHS.index(length)
        completions = tokens(uncached.generate(subject.prompts[index], GREEDY))
        assert completions == [subject.expected[index]], f"a prompt of {length} tokens"


def test_in_a_batch_of_any_order_nothing_changes(subject, uncached):
    rng = random.Random(2)
    for size in (2, 3, 8, 16):
        order = rng.sample(range(len(subject.prompts)), size)
        completions = tokens(uncached.generate([subject.prompts[i] for i in order], GREEDY))
        assert completions == [subject.expected[i] for i in order]


@BY_EITHER
@pytest.mark.parametrize("model", ["llama-llama3-tied", "qwen3"])
def test_a_preempted_completion_is_the_same(subjects, model, mode):
    subject = subjects(model)
    # 16 requests of up to 110 tokens need 77 blocks of 16 at the end; 19 are a quarter of that.
    with subject.llm(num_kv_blocks=20, **mode) as llm:
        assert tokens(llm.generate(subject.prompts, GREEDY)) == subject.expected
        assert llm.stats().num_preemptions > 0
        assert llm.stats().num_used_blocks == 0


@BY_EITHER
def test_blocks_of_any_size_hold_the_same(one_subject, mode):
    for block_size in (1, 2, 8, 32, 64):
        with one_subject.llm(block_size=block_size, **mode) as llm:
            assert tokens(llm.generate(one_subject.prompts, GREEDY)) == one_subject.expected


@pytest.mark.parametrize(
    ("length", "sizes"), [(23, (1, 2, 3, 5, 8, 15, 16, 17, 22, 23)), (48, (7, 16, 31, 32, 33, 47))]
)
def test_a_prompt_in_chunks_of_many_sizes(one_subject, length, sizes):
    """All of a prompt's context is read by the first token, and a few more show what it wrote."""
    index = PROMPT_LENGTHS.index(length)
    prompt, expected = one_subject.prompts[index], one_subject.expected[index][:12]
    few = msgspec.structs.replace(GREEDY, max_tokens=len(expected))
    for chunk in sizes:
        with one_subject.llm(max_num_batched_tokens=chunk) as llm:
            completions = tokens(llm.generate(prompt, few))
            assert completions == [expected], f"chunks of {chunk}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_prompt_of_every_model_in_chunks_of_every_size(subject):
    for prompt, expected in zip(subject.prompts, subject.expected, strict=True):
        for chunk in range(1, len(prompt) + 1):
            with subject.llm(max_num_batched_tokens=chunk) as llm:
                assert tokens(llm.generate(prompt, GREEDY)) == [expected]


@BY_EITHER
def test_chunks_and_decodes_mix_in_one_step(one_subject, mode):
    for budget in (3, 7, 19, 33):
        with one_subject.llm(max_num_batched_tokens=budget, max_num_seqs=8, **mode) as llm:
            assert tokens(llm.generate(one_subject.prompts, GREEDY)) == one_subject.expected


@pytest.mark.slow
def test_batches_of_every_size_from_1_to_16(subject):
    rng = random.Random(0)
    with subject.llm() as llm:
        for size in range(1, 17):
            order = rng.sample(range(len(subject.prompts)), size)
            completions = tokens(llm.generate([subject.prompts[i] for i in order], GREEDY))
            assert completions == [subject.expected[i] for i in order]


@BY_EITHER
def test_prompts_that_begin_like_cached_ones_have_the_same_completions(one_subject, mode):
    with one_subject.llm(block_size=8, **mode) as llm:
        for _ in range(2):
            assert tokens(llm.generate(one_subject.prompts, GREEDY)) == one_subject.expected
        assert llm.stats().num_prefix_hits > sum(PROMPT_LENGTHS) // 2


@BY_EITHER
def test_adapters_generate_like_peft_beside_requests_without(one_subject, tmp_path, mode):
    model = peft_model(one_subject.checkpoint, "first", target_modules=["q_proj", "down_proj"])
    adapter = LoRARequest("first", 1, str(save_adapter(model, "first", tmp_path)))
    some = range(2, len(PROMPT_LENGTHS), 3)
    expected = [
        greedy_tokens(model, prompt, NUM_TOKENS) if index in some else one_subject.expected[index]
        for index, prompt in enumerate(one_subject.prompts)
    ]
    assert all(expected[index] != one_subject.expected[index] for index in some)
    adapters = [adapter if index in some else None for index in range(len(PROMPT_LENGTHS))]
    with one_subject.llm(enable_lora=True, max_num_batched_tokens=40, **mode) as llm:
        completions = llm.generate(one_subject.prompts, GREEDY, lora_request=adapters)
    assert tokens(completions) == expected


@BY_EITHER
def test_logprobs_are_those_of_transformers(one_subject, mode):
    model = transformers_model(one_subject.checkpoint.folder)
    prompt, completion = one_subject.prompts[7], one_subject.expected[7]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
    with one_subject.llm(**mode) as llm:
        output = llm.generate([*one_subject.prompts[:5], prompt], params)[-1].outputs[0]
    assert output.logprobs is not None
    for row, candidates in zip(expected, output.logprobs, strict=True):
        for token_id, logprob in candidates.items():
            assert logprob.logprob == pytest.approx(row[token_id].item(), abs=1e-4)
        assert next(iter(candidates)) == row.argmax().item()


@BY_EITHER
def test_a_seed_gives_the_same_completion_alone_in_a_batch_and_after_preemption(one_subject, mode):
    params = SamplingParams(
        temperature=0.8, top_p=0.95, top_k=50, seed=11, max_tokens=40, ignore_eos=True
    )
    with one_subject.llm(**mode) as llm:
        alone = [tokens(llm.generate(prompt, params))[0] for prompt in one_subject.prompts]
        assert tokens(llm.generate(one_subject.prompts, params)) == alone
    with one_subject.llm(num_kv_blocks=20, max_num_batched_tokens=13, **mode) as llm:
        assert tokens(llm.generate(one_subject.prompts, params)) == alone
        assert llm.stats().num_preemptions > 0


def test_n_completions_differ_and_are_those_of_their_seed(one_subject):
    params = SamplingParams(temperature=1.0, seed=4, n=3, max_tokens=20, ignore_eos=True)
    with one_subject.llm() as llm:
        first = [completion.token_ids for completion in llm.generate("hello", params)[0].outputs]
        again = [completion.token_ids for completion in llm.generate("hello", params)[0].outputs]
    assert first == again
    assert len({tuple(completion) for completion in first}) == 3
