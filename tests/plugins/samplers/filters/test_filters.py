"""Tokens kept at the boundary of a filter: every filtering sampler matches one table."""

import math

import pytest
import torch
from gumbel_reference import gumbel_sample
from kernel_device import DEVICE

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import MAX_PARTIAL, TopKTopP
from quire_samplers.gumbel.cpu_gumbel import CpuGumbel
from quire_samplers.gumbel.gumbel import Gumbel
from quire_samplers.gumbel.torch_gumbel import TorchGumbel
from quire_samplers.plugin import MIN_P, TEMPERATURE, TOP_K, TOP_P
from quire_samplers.temperatures.temperature import Temperature

ALL = SamplerCapabilities(stage="sample", fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P))
SIXTEENTHS = (2, 8, 2, 4)  # of probability: 1/2, 1/4 and twice 1/8
CASES = (
    ({}, {0, 1, 2, 3}),
    ({"top_p": 0.0}, {1}),
    ({"top_p": 0.4999}, {1}),
    ({"top_p": 0.5}, {1}),
    ({"top_p": 0.5001}, {1, 3}),
    ({"top_p": 0.75}, {1, 3}),
    ({"top_p": 0.7501}, {0, 1, 2, 3}),  # the eighths stay or go together
    ({"top_p": 0.875}, {0, 1, 2, 3}),
    ({"top_k": 1}, {1}),
    ({"top_k": 2}, {1, 3}),
    ({"top_k": 3}, {0, 1, 2, 3}),
    ({"top_k": -1, "top_p": 0.5}, {1}),
    ({"top_k": 2, "top_p": 0.66}, {1}),  # two thirds and one
    ({"top_k": 2, "top_p": 0.67}, {1, 3}),
    ({"top_k": 3, "top_p": 0.8}, {1, 3}),  # 8, 4 and 2 of 14
    ({"top_k": 3, "top_p": 0.9}, {0, 1, 2, 3}),
    ({"min_p": 0.5}, {1, 3}),
    ({"min_p": 0.5001}, {1}),
    ({"min_p": 0.25}, {0, 1, 2, 3}),
    ({"min_p": 1.0}, {1}),
    ({"min_p": 0.3, "top_p": 0.66}, {1}),
    ({"temperature": 0.5, "top_p": 0.72}, {1}),  # 64 of 88
    ({"temperature": 0.5, "top_p": 0.73}, {1, 3}),
)


def boundary_logits(num_rows):
    """Logits whose softmax is exact in float32: whole multiples of log 2."""
    powers = torch.tensor([math.log2(each) for each in SIXTEENTHS])
    return (powers * math.log(2)).repeat(num_rows, 1)


def masked(logits, kept):
    out = torch.full_like(logits, -math.inf)
    out[:, sorted(kept)] = logits[:, sorted(kept)]
    return out


def stepwise(logits, rows, device=None):
    for step in (Temperature, MinP, TopKTopP):
        logits = step(logits.shape[1], device or logits.device).apply(logits.clone(), rows)
    return logits


@pytest.mark.parametrize("is_known_to_host", [True, False])
@pytest.mark.parametrize(("fields", "kept"), CASES, ids=str)
def test_the_steps_keep_what_the_list_says(fields, kept, is_known_to_host):
    rows = sampled_rows(ALL, [fields], is_known_to_host=is_known_to_host)
    out = stepwise(boundary_logits(1), rows)
    assert set(out[0].isfinite().nonzero().flatten().tolist()) == kept


def test_rows_of_all_kinds_keep_the_same_together():
    rows = sampled_rows(ALL, [fields for fields, _ in CASES])
    out = stepwise(boundary_logits(len(CASES)), rows)
    for row, (fields, kept) in zip(out, CASES, strict=True):
        assert set(row.isfinite().nonzero().flatten().tolist()) == kept, fields


def telling_seeds(fields, kept):
    """Return seeds with which the most likely dropped token and the least likely kept one win."""
    seeds = range(300)
    rows = sampled_rows(ALL, [fields] * len(seeds), seeds=seeds)
    heated = Temperature(len(SIXTEENTHS), rows.slots.device).apply(boundary_logits(300), rows)
    by_likelihood = sorted(range(len(SIXTEENTHS)), key=lambda token: -SIXTEENTHS[token])
    out = [token for token in by_likelihood if token not in kept]
    least = [token for token in by_likelihood if token in kept][-1]
    winners = [
        (gumbel_sample(heated, rows), out[:1]),
        (gumbel_sample(masked(heated, kept), rows), [least]),
    ]
    return [sampled.tolist().index(token) for sampled, tokens in winners for token in tokens]


@pytest.mark.parametrize("sampler", [Gumbel, CpuGumbel])
def test_fused_samplers_keep_the_expected_tokens(sampler):
    device = DEVICE if sampler is Gumbel else torch.device("cpu")
    chosen = [(*case, seed) for case in CASES for seed in telling_seeds(*case)]
    fields, seeds = [each for each, _, _ in chosen], [seed for _, _, seed in chosen]
    logits = boundary_logits(len(chosen)).to(device)
    rows = sampled_rows(ALL, fields, seeds=seeds, device=device.type)
    sampled = sampler(len(SIXTEENTHS), device).sample_fused(logits, rows)
    kept = torch.cat([masked(boundary_logits(1), kept) for _, kept, _ in chosen]).to(device)
    expected = gumbel_sample(Temperature(len(SIXTEENTHS), device).apply(kept, rows), rows)
    wrong = (sampled != expected).nonzero().flatten().tolist()
    assert not wrong, [(fields[row], int(sampled[row])) for row in wrong]


@pytest.mark.parametrize(("fields", "kept"), CASES, ids=str)
def test_the_torch_sampler_samples_all_kept_tokens_and_no_others(fields, kept):
    rows = sampled_rows(ALL, [fields] * 100)
    logits = stepwise(boundary_logits(100), rows)
    assert set(TorchGumbel(len(SIXTEENTHS), logits.device).sample(logits, rows).tolist()) == kept


@pytest.mark.parametrize("can_look", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        [{"top_k": MAX_PARTIAL + 1}],
        [{"top_k": MAX_PARTIAL}, {"top_k": MAX_PARTIAL + 1}],
        [{"top_k": 5}, {"top_p": 0.99}],
        [{"top_k": 5}, {"top_k": 9}],
        [{"top_p": 0.01}, {"top_p": 0.99}],
        [{"top_k": 700}, {"top_p": 0.5}],
        [{}, {"top_p": 0.9}],
        [{"top_k": MAX_PARTIAL + 1, "top_p": 0.999}],
    ],
    ids=str,
)
def test_as_many_tokens_are_ranked_as_the_rows_need(fields, can_look):
    """Off a CPU the host cannot check afterwards whether more tokens were needed."""
    vocab_size = 4 * MAX_PARTIAL
    logits = torch.randn(len(fields), vocab_size, generator=torch.Generator().manual_seed(9))
    device = torch.device("cpu" if can_look else "cuda")  # that the step believes to be on
    for is_known in (True, False):
        rows = sampled_rows(ALL, fields, is_known_to_host=is_known)
        kept = TopKTopP(vocab_size, device).apply(logits.clone(), rows).isfinite().sum(-1)
        for row, each in enumerate(fields):
            expected = num_kept(logits[row], each.get("top_k", 0), each.get("top_p", 1.0))
            assert abs(int(kept[row]) - expected) <= (each.get("top_p", 1.0) < 1), each


def num_kept(row, top_k, top_p):
    ranked = row.double().sort(descending=True).values[: top_k or None]
    probs = ranked.softmax(-1)
    return len(ranked) if top_p >= 1 else int((probs.cumsum(-1) - probs < top_p).sum())
