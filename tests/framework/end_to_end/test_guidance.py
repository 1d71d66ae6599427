"""Classifier-free guidance of the whole engine: the completions of transformers, in every mode."""

import random
from functools import cache
from typing import Any

import pytest
import torch
from transformers_model import one_thread, transformers_model

from quire import LLM, BeamSearchParams, SamplingParams
from quire.errors import InvalidRequestError, PromptTooLongError, RequestError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.checkpoints import write_checkpoint

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "windows": ("Gemma3ForCausalLM", {"sliding_window": 18}),
}
LENGTHS = ((1, 0), (1, 1), (7, 30), (33, 0), (60, 2), (17, 70))  # of the prompt and the other one
MAX_TOKENS, SCALE, PENALTY = 20, 2.5, 1.3
FEW = 70  # blocks of eight tokens
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "torch": {"kernels": "torch"},
    "few-blocks": {"num_kv_blocks": FEW},
    "chunks-of-7": {"max_num_batched_tokens": 7},
    "async": {"async_scheduling": True},
    "async-few-blocks": {"async_scheduling": True, "num_kv_blocks": FEW},
    "process": {"engine_process": True, "async_scheduling": True},
    "two-stages": {"pipeline_parallel_size": 2},
    "two-ranks": {"tensor_parallel_size": 2},
}
SLOW = ("process", "two-stages", "two-ranks")


class Subject:
    """A checkpoint, prompts, and the completions by transformers for each."""

    def __init__(self, folder, architecture, config):
        self.folder = str(write_checkpoint(folder, architecture, seed=3, **config).folder)
        rng = random.Random(5)
        self.prompts = [
            [[rng.randrange(3, 250) for _ in range(length)] for length in lengths]
            for lengths in LENGTHS
        ]
        model = transformers_model(self.folder)
        with one_thread():
            self.expected = [self.generate(model, *pair) for pair in self.prompts]

    @torch.inference_mode()
    def generate(self, model, prompt, other) -> list[int]:
        given = torch.tensor([prompt])
        negative = torch.tensor([other]) if other else None
        out = model.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            guidance_scale=SCALE,
            negative_prompt_ids=negative,
            negative_prompt_attention_mask=None if negative is None else torch.ones_like(negative),
            repetition_penalty=PENALTY,
            max_new_tokens=MAX_TOKENS,
            eos_token_id=None,
            pad_token_id=-1,
            do_sample=False,
        )
        return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    @cache
    def make(name):
        return Subject(tmp_path_factory.mktemp(name), *MODELS[name])

    return make


def guided(other="", scale=SCALE, **params):
    fields = {"guidance_scale": scale} | ({"negative_prompt": other} if other else {})
    given = {"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True} | params
    return SamplingParams(**given, extra_args=fields)


def start(subject, **options):
    return LLM(subject.folder, dtype="float32", max_model_len=120, block_size=8, **options)


def tokens_of(results):
    return [output.token_ids for result in results for output in result.outputs]


@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=pytest.mark.slow) if m in SLOW else m for m in MODES]
)
@pytest.mark.parametrize("model", MODELS)
def test_the_completions_are_those_of_transformers(subjects, model, mode):
    subject = subjects(model)
    others = SamplingParams(temperature=1, seed=7, max_tokens=40, ignore_eos=True)
    prompts = [each for own, _ in subject.prompts for each in (own, own)]
    params = [
        each
        for _, other in subject.prompts
        for each in (guided(other, repetition_penalty=PENALTY), others)
    ]
    with start(subject, **MODES[mode]) as llm:
        for _ in range(2):  # the second time with prefix hits
            found = tokens_of(llm.generate(prompts, params))
            assert found[::2] == subject.expected
        alone = tokens_of(llm.generate(subject.prompts[-1][0], others))
        assert found[-1] == alone[0]
        if "num_kv_blocks" in MODES[mode]:
            assert llm.stats().num_preemptions > 0
    assert len({token for tokens in found[::2] for token in tokens}) > 32


def test_a_sampled_completion_is_the_same_alone_and_in_a_batch(subjects):
    subject = subjects("llama")
    given = [
        guided(other, temperature=1.2, seed=index, n=2, logprobs=1)
        for index, (_, other) in enumerate(subject.prompts)
    ]
    prompts = [own for own, _ in subject.prompts]
    with start(subject) as llm:
        together = llm.generate(prompts, given)
        alone = [llm.generate(*pair)[0] for pair in zip(prompts, given, strict=True)]
    assert tokens_of(together) == tokens_of(alone)
    for result in together:
        assert len(set(map(tuple, tokens_of([result])))) == 2
        for row, token in zip(result.outputs[0].logprobs, result.outputs[0].token_ids, strict=True):
            assert token in row


def test_a_scale_of_one_is_no_guidance(subjects):
    subject = subjects("llama")
    prompt = subject.prompts[2][0]
    plain = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    with start(subject, max_num_seqs=1) as llm:  # which has no room for a companion
        expected = tokens_of(llm.generate(prompt, plain))
        assert tokens_of(llm.generate(prompt, guided(scale=1.0, max_tokens=9))) == expected
        with pytest.raises(RequestError, match="max-num-seqs"):
            llm.generate(prompt, guided())


def test_a_text_is_a_prompt_with_special_tokens(subjects):
    with start(subjects("llama")) as llm:
        token_ids = llm.get_tokenizer().encode("a cat")
        given = [guided("a cat"), guided(token_ids), guided("a dog")]
        text, ids, another = tokens_of(llm.generate(["once"] * 3, given))
    assert text == ids
    assert text != another


def test_a_guided_completion_follows_its_grammar(subjects):
    constraint = StructuredOutputsParams(regex="[ab]{3,9}c")
    with start(subjects("llama")) as llm:
        given = guided("xyz", structured_outputs=constraint, ignore_eos=False, min_tokens=2)
        outputs = llm.generate(["abc"] * 3, given)
    for result in outputs:
        assert result.outputs[0].finish_reason in ("stop", "length")
        assert set(result.outputs[0].text) <= set("abc")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guidance_scale": -0.5}, "guidance_scale"),
        ({"guidance_scale": float("nan")}, "guidance_scale"),
        ({"guidance_scale": True}, "guidance_scale"),
        ({"negative_prompt": "x"}, "negative_prompt"),
        ({"guidance_scale": 2, "negative_prompt": [10**9]}, "negative_prompt"),
        ({"guidance_scale": 2, "negative_prompt": [-1]}, "negative_prompt"),
        ({"guidance_scale": 2, "negative_prompt": [True]}, "negative_prompt"),
        ({"guidance_scale": 2, "negative_prompt": {"a": 1}}, "negative_prompt"),
        ({"guidance_scale": 2, "negative_prompt": "\ud800"}, "negative_prompt"),
        ({"guidance_scale": 2, "negative_prompt": "a" * 2_000_000}, "negative_prompt"),
        ({"guidance_scale": 2, "negative_prompt": [7] * 2_000_000}, "negative_prompt"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_wrong_field_is_refused_by_name(subjects, started, fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        started.generate("abc", SamplingParams(max_tokens=2, extra_args=fields))
    assert caught.value.param == param


@pytest.fixture(scope="module")
def started(subjects):
    with start(subjects("llama")) as llm:
        yield llm


def test_a_negative_prompt_must_leave_room_for_the_completion(started):
    with pytest.raises(PromptTooLongError) as caught:
        started.generate("abc", guided([7] * 120))
    assert caught.value.param == "negative_prompt"
    (result,) = started.generate("abc", guided([7] * 115))
    assert len(result.outputs[0].token_ids) == 5


def test_a_beam_search_takes_no_guidance():
    with pytest.raises(TypeError):
        BeamSearchParams(beam_width=2, extra_args={"guidance_scale": 2.0})
