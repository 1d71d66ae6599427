"""DRY against its plain definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import History, sampled_rows
from quire_samplers import plugin
from quire_samplers.penalties import dry

REPEATED = (1, 2, 3, 4, 9, 1, 2, 3)


class TestDRY(LogitsProcessorContract):
    step_class = dry.DRY
    capabilities = plugin.DRY
    active = (
        {"dry_multiplier": 0.8},
        {"dry_multiplier": 2.0, "dry_base": 1.2, "dry_allowed_length": 1},
    )
    histories = (History(REPEATED, num_prompt_tokens=5), History((5, 6, 7, 5, 6), 1))


def plain(tokens, vocab_size, multiplier, base, allowed, span, breakers):
    """Return the penalties by comparing every earlier place token by token."""
    first = max(0, len(tokens) - span) if span else 0
    lengths = [0] * vocab_size
    for i in range(first, len(tokens) - 1):
        n = 0
        while (
            n < dry.MAX_MATCH
            and i - n >= first
            and tokens[i - n] == tokens[-1 - n]
            and tokens[-1 - n] not in breakers
        ):
            n += 1
        if tokens[i + 1] not in breakers:
            lengths[tokens[i + 1]] = max(lengths[tokens[i + 1]], n)
    return [
        min(multiplier * base ** (n - allowed), dry.MAX_PENALTY) if n and n >= allowed else 0.0
        for n in lengths
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(0, 12),
    st.sets(st.integers(0, 4), max_size=2),
)
def test_penalties_are_those_of_the_definition(tokens, allowed, span, breakers):
    fields = {
        "dry_multiplier": 0.8,
        "dry_base": 1.5,
        "dry_allowed_length": allowed,
        "dry_range": span,
        "dry_sequence_breakers": [[token] for token in sorted(breakers)],
    }
    rows = sampled_rows(plugin.DRY, [fields], histories=[History(tokens, 1)])
    found = dry.DRY(6, torch.device("cpu")).apply(torch.zeros(1, 6), rows)
    expected = plain(tokens, 6, 0.8, 1.5, allowed, span, breakers)
    assert (-found[0]).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_long_context_is_searched_in_chunks(monkeypatch):
    fields = {"dry_multiplier": 1.0, "dry_sequence_breakers": []}
    tokens = [*REPEATED[:4], *[7, 8] * 8, 1, 2, 3]
    rows = sampled_rows(plugin.DRY, [fields], histories=[History(tokens, 1)])
    whole = dry.DRY(10, torch.device("cpu")).apply(torch.zeros(1, 10), rows)
    for size in (1, 2, 5):
        monkeypatch.setattr(dry, "CHUNK", size)
        parts = dry.DRY(10, torch.device("cpu")).apply(torch.zeros(1, 10), rows)
        assert torch.equal(parts, whole)
    assert whole[0, 4] < 0
