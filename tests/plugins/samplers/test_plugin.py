"""The built-in sampler steps together: declared fields, and the resulting distribution."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from quire.errors import InvalidRequestError
from quire.interfaces.field_types import TokenMap
from quire.interfaces.sampling import STAGES, SamplerCapabilities
from quire.sampling_params import LIMITS, SamplingParams
from quire.testing.sampling.sampled_rows import ANY_HISTORY, sampled_rows

DEVICE = torch.device("cpu")
VOCAB_SIZE = 120


def built_in(registries):
    """Names of our steps, in the order of the pipeline."""
    entries = [e for e in registries.samplers.offers() if e.source.plugin == "quire_samplers"]
    return sorted(entries, key=lambda e: (STAGES.index(e.capabilities.stage), e.name))


def all_fields(registries):
    fields = {f.name: f for e in built_in(registries) for f in e.capabilities.fields}
    states = tuple(name for e in built_in(registries) for name in e.capabilities.states)
    return SamplerCapabilities(stage="filter", fields=tuple(fields.values()), states=states)


def filtered(registries, logits, requests):
    rows = sampled_rows(all_fields(registries), requests, vocab_size=VOCAB_SIZE)
    for entry in built_in(registries):
        if entry.capabilities.stage == "sample":
            break
        logits = registries.samplers.load(entry)(VOCAB_SIZE, DEVICE).apply(logits, rows)
    return logits


def test_they_run_in_a_known_order(quire_registries):
    names = [entry.name for entry in built_in(quire_registries)]
    samplers = ["cpu_gumbel", "gumbel", "torch_gumbel"]
    guidance = ["classifier_free_guidance"]
    penalties = ["dry", "repetition_penalty", "sampled_token_penalties"]
    control = ["allowed_token_ids", "bad_words", "logit_bias", "watermark"]
    temperatures = ["dynamic_temperature", "quadratic_smoothing", "temperature"]
    filters = ["epsilon_cutoff", "eta_cutoff", "min_p", "mirostat", "top_a", "top_k_top_p"]
    further = ["top_n_sigma", "typical_p", "xtc"]
    assert names == [*guidance, *penalties, *control, *temperatures, *filters, *further, *samplers]


def test_the_whole_pipeline_equals_transformers(quire_registries):
    logits = torch.randn(8, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 3
    warpers = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.2),
            NoBadWordsLogitsProcessor([[15], [42, 8, 3]]),
            SequenceBiasLogitsProcessor({(4,): 2.0, (7,): -1.5}),
            TemperatureLogitsWarper(0.8),
            MinPLogitsWarper(0.02),
            TopKLogitsWarper(30),
            TopPLogitsWarper(0.9),
        ]
    )
    request = {
        "repetition_penalty": 1.2, "bad_words": [[15], [42, 8, 3]], "logit_bias": {4: 2, 7: -1.5},
        "temperature": 0.8, "min_p": 0.02, "top_k": 30, "top_p": 0.9,
    }  # fmt: skip
    found = filtered(quire_registries, logits.clone(), [request] * 8)
    input_ids = torch.tensor([ANY_HISTORY.token_ids] * 8)
    torch.testing.assert_close(found, warpers(input_ids, logits.clone()))


def test_requests_of_every_kind_share_a_batch(quire_registries):
    logits = torch.randn(8, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 3
    requests = [
        {"temperature": 0.0},
        {"temperature": 0.5, "top_k": 3},
        {"temperature": 1.0},
        {"temperature": 2.0, "top_p": 0.3},
        {"temperature": 1.0, "min_p": 0.5, "top_k": -1},
        {"presence_penalty": 1.0, "frequency_penalty": -0.5, "temperature": 0.0},
        {"repetition_penalty": 1.5, "logit_bias": {3: 9.0}, "allowed_token_ids": [3, 8]},
        {"bad_words": [[8], [8, 9]], "temperature": 0.7},
    ]
    together = filtered(quire_registries, logits.clone(), requests)
    for row, request in enumerate(requests):
        alone = filtered(quire_registries, logits[row : row + 1].clone(), [request])
        assert torch.equal(together[row], alone[0])
    assert torch.equal(together[0], logits[0])
    assert torch.equal(together[2], logits[2])


def test_every_field_has_help_and_one_meaning(quire_registries):
    declared = [f for e in built_in(quire_registries) for f in e.capabilities.fields]
    assert all(field.help for field in declared)
    meanings = {field.name: field for field in declared}
    assert all(field == meanings[field.name] for field in declared)


def test_every_field_has_the_limits_of_the_sampling_parameter(quire_registries):
    known = SamplingParams.__struct_fields__
    every = [f for e in built_in(quire_registries) for f in e.capabilities.fields]
    declared = {f.name: f for f in every if f.name in known}
    limits = {
        name: (bounds.minimum, bounds.maximum)
        for name, field in declared.items()
        if (bounds := field.type if isinstance(field.type, TokenMap) else field)
    }
    lists = {"allowed_token_ids", "bad_words"}
    assert {name: limits[name] for name in limits.keys() - lists} == LIMITS
    for name, field in declared.items():
        assert field.check(getattr(SamplingParams(), name)) in (field.default, ())


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("temperature", [0, 0.7, 2.0, 100.0], [-0.1, 100.1]),
        ("top_k", [-1, 0, 1, 2**31 - 1], [-2, 2**31]),
        ("top_p", [0.0, 0.5, 1.0], [-0.1, 1.1]),
        ("min_p", [0.0, 0.5, 1.0], [-0.1, 1.1]),
        ("presence_penalty", [-2, 0, 2.0], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 0, 2.0], [-2.1, 2.1]),
        ("repetition_penalty", [0.01, 1, 2.0], [0, -1.0]),
        ("logit_bias", [{}, {0: -100.0, 9: 100}], [{0: -100.1}, {9: 101}]),
    ],
)
def test_fields_take_what_vllm_takes_and_no_more(quire_registries, name, taken, refused):
    declared = {f.name: f for e in built_in(quire_registries) for f in e.capabilities.fields}
    field = declared[name]
    for value in taken:
        assert field.check(value) == value
    for value in refused:
        with pytest.raises(InvalidRequestError, match=name):
            field.check(value)


def test_steps_without_sums_over_the_vocabulary_work_on_shards(quire_registries):
    parallel = {e.name for e in built_in(quire_registries) if e.capabilities.is_vocab_parallel}
    assert parallel == {
        "repetition_penalty", "sampled_token_penalties", "logit_bias", "watermark",
        "temperature", "gumbel", "cpu_gumbel", "torch_gumbel",
    }  # fmt: skip


def test_samplers_with_kernels_fuse_all_processors(quire_registries):
    entries = {entry.name: entry.capabilities for entry in built_in(quire_registries)}
    for name, kernels in (("gumbel", "triton"), ("cpu_gumbel", "native"), ("torch_gumbel", None)):
        assert entries[name].needs_kernels == kernels
        steps = ("temperature", "min_p", "top_k_top_p") if kernels else ()
        assert entries[name].fuses == steps
