"""Every family in a whole engine, and on two ranks, against transformers."""

import gc
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import make_model, random_tokens

from quire import LLM, RequestOutput, SamplingParams
from quire.engine.kv_cache.kv_plan import blocks_held, fixed_plan
from quire.native.availability import native_unavailable_reason
from quire.plugins.loading import load_plugins
from quire.testing.model.dense_attention import difference, logits_of
from quire.testing.model.threaded_ranks import ThreadedGroup, run_ranks
from quire.worker.loading.weight_loading import load_weights
from quire_models.family_table import describe

TOLERANCE = 1e-4
NUM_TOKENS = 40
PROMPT_LENGTHS = (21, 34, 47)  # longer than the windows, and than what positions are scaled from
MAX_MODEL_LEN = max(PROMPT_LENGTHS) + NUM_TOKENS + 9
BLOCK_SIZE = 8
CHUNK = 17
SHORT_LENGTHS = (2, 3, 4, 5, 6)  # of requests that still grow where layers have windows
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
# Quick ones have different traits; each family has a case.
QUICK = {
    "Gemma2ForCausalLM": "caps",
    "GPT2LMHeadModel": "scaled by layer",
    "GPTNeoXForCausalLM": "parallel",
    "Phi3ForCausalLM": "longrope",
    "GptOssForCausalLM": "yarn",
    "OPTForCausalLM": "350m",
}
QUICK_GRIDS = ("GPTNeoXForCausalLM", "GptOssForCausalLM")
SHAPES = {family: QUICK.get(family, next(iter(shapes))) for family, shapes in CASES.items()}


def marked(quick: Sequence[str]) -> list[Any]:
    return [
        family if family in quick else pytest.param(family, marks=pytest.mark.slow)
        for family in CASES
    ]


class Subject:
    """A checkpoint of a family, and prompts."""

    def __init__(self, folder: Path, family: str) -> None:
        self.written = write_family(folder, CASES[family][SHAPES[family]])
        rng = random.Random(7)
        self.prompts = [[rng.randrange(3, 320) for _ in range(n)] for n in PROMPT_LENGTHS]
        self.short_prompts = [[rng.randrange(3, 320) for _ in range(n)] for n in SHORT_LENGTHS]
        gc.freeze()  # the engines collect garbage, and transformers is none

    def llm(self, **options: Any) -> LLM:
        defaults = {
            "dtype": "float32",
            "threads": 1,
            "block_size": BLOCK_SIZE,
            "max_model_len": MAX_MODEL_LEN,
        }
        return LLM(str(self.written.folder), **(defaults | options))

    def smallest_pool(self) -> int:
        """Return the number of blocks of a pool that fits one request in chunks."""
        specs = load_plugins().registries.kv_cache_specs
        made = [
            specs.get(layer.spec)(layer, BLOCK_SIZE, "float32")
            for layer in describe(self.written.config).kv_layers
        ]
        return 1 + blocks_held(fixed_plan(made, 2), MAX_MODEL_LEN, CHUNK)

    def torch_backend(self) -> str:
        """Return the name of the attention backend that computes with operators of torch."""
        layers = describe(self.written.config).kv_layers
        is_latent = any(layer.spec == "mla_attention" for layer in layers)
        return "torch_mla" if is_latent else "torch_sdpa"

    def check(
        self, outputs: Sequence[RequestOutput], prompts: Sequence[list[int]] | None = None
    ) -> None:
        """Check that each token of a completion is the likeliest of transformers."""
        for prompt, output in zip(prompts or self.prompts, outputs, strict=True):
            tokens = list(output.outputs[0].token_ids)
            assert len(tokens) == NUM_TOKENS
            logits = self.written.logits(torch.tensor([*prompt, *tokens]))
            assert tokens == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    """The subject of each family, made on first use."""
    return cache(lambda family: Subject(tmp_path_factory.mktemp("family"), family))


@pytest.mark.parametrize("family", marked(list(QUICK)))
def test_prompts_in_one_step_and_prefix_hits_give_the_tokens_of_transformers(
    subjects, family, caplog
):
    subject = subjects(family)
    caplog.set_level("INFO", "quire")
    with subject.llm() as llm:
        first = llm.generate(subject.prompts, GREEDY)
        subject.check(first)
        again = llm.generate(subject.prompts, GREEDY)
        subject.check(again)
    assert [output.num_cached_tokens for output in first] == [0, 0, 0]
    for output, length in zip(again, PROMPT_LENGTHS, strict=True):
        assert output.num_cached_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    if native_unavailable_reason() is None:
        assert "have no CPU graph" not in caplog.text


@pytest.mark.parametrize("family", marked(list(QUICK)))
def test_chunks_and_preempted_requests_give_the_tokens_of_transformers(subjects, family):
    subject = subjects(family)
    with subject.llm(
        max_num_batched_tokens=CHUNK,
        num_kv_blocks=subject.smallest_pool(),
        enable_prefix_caching=False,
    ) as llm:
        prompts = [*subject.short_prompts, *subject.prompts]
        subject.check(llm.generate(prompts, GREEDY), prompts)
        assert llm.stats().num_preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", CASES)
def test_operators_of_torch_give_the_tokens_of_transformers(subjects, family):
    subject = subjects(family)
    with subject.llm(kernels="torch", attention_backend=subject.torch_backend()) as llm:
        subject.check(llm.generate(subject.prompts, GREEDY))


@pytest.mark.parametrize("family", CASES)
def test_two_ranks_compute_the_logits_of_transformers(subjects, family):
    written = subjects(family).written
    token_ids = random_tokens(50, seed=5)

    def logits_of_rank(group: ThreadedGroup) -> tuple[torch.Tensor, int]:
        model = make_model(written.config, tp=group)
        load_weights(model, written.folder)
        return logits_of(model, token_ids), group.num_sums

    expected = written.logits(token_ids)
    for logits, num_sums in run_ranks(2, logits_of_rank):
        assert difference(logits, expected) < TOLERANCE
        assert num_sums > 0


@pytest.mark.parametrize("family", marked(QUICK_GRIDS))
def test_two_processes_give_the_tokens_of_transformers(subjects, family):
    subject = subjects(family)
    with subject.llm(tensor_parallel_size=2) as llm:
        subject.check(llm.generate(subject.prompts, GREEDY))
