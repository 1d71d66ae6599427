"""Classifier-free guidance against the logits processor of transformers."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.modeling_outputs import CausalLMOutputWithPast

from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import random_logits, sampled_rows
from quire_samplers.guidance import ClassifierFreeGuidance
from quire_samplers.plugin import GUIDANCE

V, COMPANIONS = 50, torch.tensor([2, 1, 2, 0])


class TestClassifierFreeGuidance(LogitsProcessorContract):
    step_class = ClassifierFreeGuidance
    capabilities = GUIDANCE
    active = ({"guidance_scale": 2.0}, {"guidance_scale": 0.0}, {"guidance_scale": 0.5})


def rows_of(*scales):
    rows = sampled_rows(GUIDANCE, [{"guidance_scale": scale} for scale in scales], vocab_size=V)
    guided = torch.arange(len(scales))
    return replace(rows, guided=guided, companions=COMPANIONS[: len(scales)])


def applied(logits, *scales):
    step = ClassifierFreeGuidance(V, logits.device)
    return step.apply(logits.clone(), rows_of(*scales))


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5, 4.0, 100.0])
def test_guided_logits_are_those_of_transformers(scale):
    logits = random_logits(4, V, scale=3.0)

    def unconditional(token_ids, **options):
        del token_ids, options
        return CausalLMOutputWithPast(logits=logits[2:3].unsqueeze(0))

    processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, unconditional)
    expected = processor(torch.tensor([[1]]), logits[:1].clone())
    found = applied(logits, scale, 1.0, 1.0, 1.0)
    torch.testing.assert_close(found[:1], expected, atol=1e-4, rtol=1e-5)


def test_rows_without_guidance_keep_their_logits_to_the_bit():
    logits = random_logits(4, V, scale=3.0)
    found = applied(logits, 2.0, 1.0, 1.0, 3.0)
    assert torch.equal(found[1:3], logits[1:3])
    assert not torch.equal(found[0], logits[0])
    assert not torch.equal(found[3], logits[3])


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0])
def test_masked_tokens_stay_masked(scale):
    logits = random_logits(4, V, scale=3.0)
    logits[0, ::2] = -math.inf
    found = applied(logits, scale, 1.0, 1.0, 1.0)[0]
    assert (found[::2] == -math.inf).all()
    assert found[1::2].isfinite().all()


def test_a_batch_without_companions_is_left_as_it_is():
    logits = random_logits(1, V, scale=3.0)
    rows = replace(rows_of(2.0), guided=None, companions=None)
    assert torch.equal(ClassifierFreeGuidance(V, logits.device).apply(logits, rows), logits)
