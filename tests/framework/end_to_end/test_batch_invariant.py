"""`--batch-invariant`: a request's tokens and log probabilities are the same bits in every company.

A fingerprint is every token, and every log probability as the float that it is; nothing is rounded.
"""

import random
from typing import Any

import pytest
import torch
from adapter_parts import peft_model, save_adapter
from msgspec.structs import replace

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "llama-mqa-biases": (
        "LlamaForCausalLM",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "head_dim": 24},
    ),
    "qwen2-odd-sizes-tied": (
        "Qwen2ForCausalLM",
        {
            "hidden_size": 72,
            "head_dim": 24,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "intermediate_size": 101,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3-windows": ("Gemma3ForCausalLM", {"sliding_window": 20}),
}
NUM_TOKENS = 24
PROMPT_LENGTHS = (1, 5, 16, 33, 127, 128, 129, 140, 40, 2, 64, 100, 17, 150, 8, 90)
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
SAMPLED = replace(GREEDY, temperature=0.9, top_p=0.9, top_k=40, min_p=0.01, seed=7)


class Subject:
    """A checkpoint, prompts, and the fingerprint of each alone."""

    def __init__(self, folder: Any, architecture: str, config: dict[str, Any]) -> None:
        self.architecture = architecture
        self.checkpoint = write_checkpoint(folder, architecture, seed=3, **config)
        rng = random.Random(5)
        self.prompts = [[rng.randrange(3, 320) for _ in range(n)] for n in PROMPT_LENGTHS]
        with self.llm(enable_prefix_caching=False) as llm:
            self.alone = [fingerprints(llm, [prompt])[0] for prompt in self.prompts]

    def llm(self, **options: Any) -> LLM:
        options = {"max_model_len": 256, "dtype": "float32", **options}
        return LLM(str(self.checkpoint.folder), batch_invariant=True, **options)


QUICK = ("qwen3", "gemma3-windows")
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.fixture(scope="module", params=EVERY)
def subject(request, tmp_path_factory):
    return Subject(tmp_path_factory.mktemp(request.param), *MODELS[request.param])


@pytest.fixture(scope="module")
def one_subject(tmp_path_factory):
    return Subject(tmp_path_factory.mktemp("one"), *MODELS["qwen3"])


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)  # an engine in this process sets them for all


def fingerprints(llm, prompts, params=GREEDY, **options):
    """Tokens and all log probabilities of each completion."""
    outputs = llm.generate(prompts, params, **options)
    return [[_fingerprint(completion) for completion in output.outputs] for output in outputs]


def _fingerprint(completion):
    rows = [{token: one.logprob for token, one in row.items()} for row in completion.logprobs]
    return (completion.token_ids, rows)


def test_the_completions_are_worth_comparing(subject):
    completions = [completion for ((completion, _),) in subject.alone]
    assert len({tuple(completion) for completion in completions}) == len(completions)
    assert all(len(set(completion)) >= NUM_TOKENS // 3 for completion in completions)


def test_in_batches_of_any_size_and_order(subject):
    rng = random.Random(0)
    with subject.llm(enable_prefix_caching=False) as llm:
        for size in (2, 3, 8, 16):
            order = rng.sample(range(len(subject.prompts)), size)
            completions = fingerprints(llm, [subject.prompts[i] for i in order])
            assert completions == [subject.alone[i] for i in order], f"in a batch of {size}"


def test_after_preemption(subject):
    order = [i for i, length in enumerate(PROMPT_LENGTHS) if length <= 40]  # they grow together
    num_blocks = 140 if subject.architecture == "Gemma3ForCausalLM" else 50  # three block tables
    with subject.llm(num_kv_blocks=num_blocks, block_size=4, max_model_len=176) as llm:
        completions = fingerprints(llm, [subject.prompts[i] for i in order])
        assert completions == [subject.alone[i] for i in order]
        assert llm.stats().num_preemptions > 1


@pytest.mark.parametrize("budget", [7, 32, 130])
def test_chunks_and_decodes_mix_in_one_step(subject, budget):
    with subject.llm(max_num_batched_tokens=budget, max_num_seqs=8) as llm:
        assert fingerprints(llm, subject.prompts) == subject.alone


def test_on_a_prefix_hit(subject):
    with subject.llm() as llm:
        first = fingerprints(llm, subject.prompts)
        again = llm.generate(subject.prompts, GREEDY)
        assert first == subject.alone
        assert [[_fingerprint(o.outputs[0])] for o in again] == subject.alone
        hits = [o.num_cached_tokens for o in again]
        assert max(hits) >= 128


def test_the_next_turn_reads_what_the_first_one_generated(one_subject):
    prompt, ((completion, _),) = one_subject.prompts[4], one_subject.alone[4]
    turn = [*prompt, *completion, 9, 10, 11]
    with one_subject.llm(enable_prefix_caching=False) as llm:
        computed = fingerprints(llm, [turn])
    with one_subject.llm() as llm:
        llm.generate([prompt], GREEDY)
        (output,) = llm.generate([turn], GREEDY)
    assert output.num_cached_tokens > len(prompt)
    assert [[_fingerprint(output.outputs[0])]] == computed


def test_log_probabilities_of_the_prompt(one_subject):
    params = replace(GREEDY, prompt_logprobs=2, max_tokens=1)

    def rows(outputs):
        return [
            [
                row and {token: one.logprob for token, one in row.items()}
                for row in o.prompt_logprobs
            ]
            for o in outputs
        ]

    with one_subject.llm() as llm:
        alone = [rows(llm.generate([prompt], params))[0] for prompt in one_subject.prompts]
    with one_subject.llm(max_num_batched_tokens=70) as llm:
        assert rows(llm.generate(one_subject.prompts, params)) == alone


@pytest.mark.parametrize(("index", "chunks"), [(2, (1, 2, 7, 15, 16)), (7, (1, 31, 127, 128, 129))])
def test_in_chunks_of_every_size(one_subject, index, chunks):
    prompt, expected = one_subject.prompts[index], one_subject.alone[index]
    for chunk in chunks:
        with one_subject.llm(max_num_batched_tokens=chunk) as llm:
            assert fingerprints(llm, [prompt]) == [expected], f"in chunks of {chunk}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_prompt_of_every_model_in_chunks_of_every_size(subject):
    for prompt, expected in zip(subject.prompts, subject.alone, strict=True):
        for chunk in range(1, len(prompt) + 1):
            with subject.llm(max_num_batched_tokens=chunk) as llm:
                assert fingerprints(llm, [prompt]) == [expected], f"in chunks of {chunk}"


@pytest.mark.slow
def test_batches_of_every_size_in_many_orders(subject):
    rng = random.Random(1)
    with subject.llm(enable_prefix_caching=False) as llm:
        for size in list(range(1, 17)) * 3:
            order = rng.sample(range(len(subject.prompts)), size)
            completions = fingerprints(llm, [subject.prompts[i] for i in order])
            assert completions == [subject.alone[i] for i in order], f"in a batch of {size}"


def test_sampled_rows_of_different_settings_do_not_see_each_other(one_subject):
    prompts = one_subject.prompts
    params = [
        replace(SAMPLED, seed=seed, **special)
        for seed, special in enumerate(
            [{}, {"top_k": 0}, {"top_k": 0, "top_p": 0.999}, {"top_p": 1.0}, {"n": 3}] * 3
        )
    ]
    with one_subject.llm() as llm:
        alone = [
            fingerprints(llm, [prompt], one)[0]
            for prompt, one in zip(prompts, params, strict=False)
        ]
    with one_subject.llm(num_kv_blocks=50, block_size=4, max_model_len=176) as llm:
        assert fingerprints(llm, prompts[: len(params)], params) == alone


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits(one_subject, dtype):
    with one_subject.llm(dtype=dtype, enable_prefix_caching=False) as llm:
        alone = [fingerprints(llm, [prompt])[0] for prompt in one_subject.prompts]
        assert fingerprints(llm, one_subject.prompts[::-1]) == alone[::-1]
    with one_subject.llm(
        dtype=dtype, num_kv_blocks=50, block_size=4, max_model_len=176, max_num_batched_tokens=33
    ) as llm:
        assert fingerprints(llm, one_subject.prompts) == alone


@pytest.mark.slow
@pytest.mark.usefixtures("_threads")
def test_with_two_threads(one_subject):
    with one_subject.llm(threads=2, enable_prefix_caching=False) as llm:
        alone = [fingerprints(llm, [prompt])[0] for prompt in one_subject.prompts]
        assert fingerprints(llm, one_subject.prompts[::-1]) == alone[::-1]
    with one_subject.llm(
        threads=2, num_kv_blocks=50, block_size=4, max_model_len=176, max_num_batched_tokens=33
    ) as llm:
        assert fingerprints(llm, one_subject.prompts) == alone


def test_with_adapters_in_the_batch(one_subject, tmp_path):
    model = peft_model(one_subject.checkpoint, "first", r=4)
    folders = [save_adapter(model, "first", tmp_path)]
    model = peft_model(one_subject.checkpoint, "second", r=7, target_modules=["q_proj", "up_proj"])
    folders.append(save_adapter(model, "second", tmp_path))
    names = ["first", "second", None] * 5
    prompts = one_subject.prompts[: len(names)]
    options = {
        "enable_lora": True,
        "lora_modules": (f"first={folders[0]}", f"second={folders[1]}"),
    }
    with one_subject.llm(enable_prefix_caching=False, **options) as llm:
        alone = [
            fingerprints(llm, [prompt], lora_request=name)[0]
            for prompt, name in zip(prompts, names, strict=True)
        ]
        assert fingerprints(llm, prompts, lora_request=names) == alone
    assert alone[0] != one_subject.alone[0]
    assert [alone[i] for i in (2, 5)] == [one_subject.alone[i] for i in (2, 5)]
    with one_subject.llm(
        num_kv_blocks=50, block_size=4, max_model_len=176, max_num_batched_tokens=50, **options
    ) as llm:
        assert fingerprints(llm, prompts[::-1], lora_request=names[::-1]) == alone[::-1]
