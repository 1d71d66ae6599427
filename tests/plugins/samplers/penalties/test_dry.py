"""DRY against its plain definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidRequestError
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
    """Return the penalties by comparing every earlier position token by token."""
    first = max(0, len(tokens) - span) if span else 0
    lengths = [0] * vocab_size
    for i in range(first, len(tokens) - 1):
        n = 0
        while (
            n < plugin.MAX_REPETITION
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


def fields_of(multiplier, base=1.5, allowed=2, span=0, breakers=()):
    return {
        "dry_multiplier": multiplier,
        "dry_base": base,
        "dry_allowed_length": allowed,
        "dry_range": span,
        "dry_sequence_breakers": [[token] for token in breakers],
    }


class DenseDRY(dry.DRY):
    """DRY as it runs on a GPU: all rows and all lengths, without a look at values."""

    def __init__(self, vocab_size, device):
        super().__init__(vocab_size, device)
        self._can_look = False


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(0, 12),
    st.sets(st.integers(0, 4), max_size=2),
)
def test_penalties_are_those_of_the_definition(tokens, allowed, span, breakers):
    fields = fields_of(0.8, 1.5, allowed, span, sorted(breakers))
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


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=80),
            st.builds(
                fields_of,
                st.sampled_from([0.0, 0.8, 100.0]),
                st.sampled_from([1.0, 1.75, 10.0]),
                st.sampled_from([1, 2, 3, 50]),
                st.sampled_from([0, 1, 7, 60]),
                st.sets(st.integers(0, 3), max_size=2),
            ),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([1, 7, 64, 4096]),
)
def test_a_shorter_search_gives_the_same_bits(requests, chunk):
    fields = [each for _, each in requests]
    histories = [History(tokens, 1) for tokens, _ in requests]
    rows = sampled_rows(plugin.DRY, fields, histories=histories)
    logits = torch.randn(len(requests), 9, generator=torch.Generator().manual_seed(3))
    logits[:, 1] = -torch.inf
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dry, "CHUNK", chunk)
        for step in (dry.DRY, DenseDRY):
            found[step] = step(9, torch.device("cpu")).apply(logits.clone(), rows)
    assert torch.equal(found[dry.DRY], found[DenseDRY])


def test_the_search_ends_with_the_last_match(monkeypatch):
    looks = []
    whole = torch.Tensor.any

    def counted(tensor, *dims):
        looks.append(dims)
        return whole(tensor, *dims)

    monkeypatch.setattr(torch.Tensor, "any", counted)
    rows = sampled_rows(plugin.DRY, [fields_of(1.0)], histories=[History(REPEATED, 1)])
    dry.DRY(10, torch.device("cpu")).apply(torch.zeros(1, 10), rows)
    assert looks.count(()) == 4  # 3, 2 and 1 match, and nothing is before them


@pytest.mark.parametrize("step", [dry.DRY, DenseDRY])
def test_a_row_without_dry_beside_one_with_it_keeps_its_logits(step):
    fields = [fields_of(0.0, base=10.0, allowed=1), fields_of(0.8)]
    rows = sampled_rows(plugin.DRY, fields, histories=[History([1] * 60, 1), History(REPEATED, 1)])
    logits = torch.ones(2, 10)
    found = step(10, torch.device("cpu")).apply(logits.clone(), rows)
    assert torch.equal(found[0], logits[0])  # 10 ** 49 is infinite in float32
    assert found[1, 4] < 1


def test_the_largest_allowed_length_is_the_longest_repetition_that_is_compared():
    field = next(each for each in plugin.DRY.fields if each.name == "dry_allowed_length")
    assert field.check(plugin.MAX_REPETITION) == 50
    with pytest.raises(InvalidRequestError, match=r"dry_allowed_length must be .*50"):
        field.check(51)
    repeated = range(1, 51)
    for start, penalty in ((0, 0.75), (1, 0.0)):
        history = History([*repeated, 60, *repeated[start:]], 1)
        rows = sampled_rows(plugin.DRY, [fields_of(0.75, allowed=50)], histories=[history])
        found = dry.DRY(61, torch.device("cpu")).apply(torch.zeros(1, 61), rows)
        assert found[0, 60] == -penalty
