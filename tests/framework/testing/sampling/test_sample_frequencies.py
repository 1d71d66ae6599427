"""The chi-square test of sampled tokens: its probabilities, its classes, and what it finds."""

import pytest
import torch

from quire.interfaces.sampling import RequestField, SamplerCapabilities
from quire.testing.sampling import sample_frequencies
from quire.testing.sampling.sample_frequencies import check_frequencies, repeated_row
from quire.testing.sampling.sampled_rows import sampled_rows

COIN = torch.tensor([0.5, 0.5])


def sampled(probs, num_samples, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.multinomial(probs, num_samples, replacement=True, generator=random)


def tokens_of(counts):
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def test_the_probability_of_a_difference_is_that_of_the_tables(monkeypatch):
    """A chi-square value of 6.635 with one degree of freedom is reached with probability 0.01."""
    heads = 500_000 + round((6.635 * 1e6 / 4) ** 0.5)
    counts = [heads, 1_000_000 - heads]
    for false_alarm, is_taken in ((0.0095, True), (0.0105, False)):
        monkeypatch.setattr(sample_frequencies, "FALSE_ALARM", false_alarm)
        if is_taken:
            check_frequencies(tokens_of(counts), COIN, "coins")
        else:
            with pytest.raises(AssertionError, match=r"with a probability of 1\.0e-02"):
                check_frequencies(tokens_of(counts), COIN, "coins")


def test_right_samples_fail_as_often_as_the_stated_probability(monkeypatch):
    """With a probability of 0.1, 10 of 100 right samples fail, and hardly more than 20."""
    monkeypatch.setattr(sample_frequencies, "FALSE_ALARM", 0.1)
    probs = (torch.randn(60, generator=torch.Generator().manual_seed(3)) * 3).softmax(-1)
    num_failed = 0
    for seed in range(100):
        try:
            check_frequencies(sampled(probs, 2000, seed), probs, "rows")
        except AssertionError:
            num_failed += 1
    assert 2 <= num_failed <= 20


def test_right_samples_pass_and_a_third_more_of_a_token_does_not():
    probs = torch.randn(50, generator=torch.Generator().manual_seed(3)).softmax(-1)
    check_frequencies(sampled(probs, 20_000, 1), probs, "rows")
    other = probs.clone()
    other[probs.argmax()] *= 4 / 3
    with pytest.raises(AssertionError, match=f"token {int(probs.argmax())} occurs"):
        check_frequencies(sampled(other, 20_000, 1), probs, "rows")


def test_rare_tokens_count_together():
    """Each of 1000 rare tokens is expected once; too many of all of them are found."""
    probs = torch.cat((torch.tensor([0.95]), torch.full((1000,), 0.05 / 1000)))
    check_frequencies(sampled(probs, 20_000, 5), probs, "rows")
    more = torch.cat((torch.tensor([0.9]), torch.full((1000,), 0.1 / 1000)))
    with pytest.raises(AssertionError, match="do not follow"):
        check_frequencies(sampled(more, 20_000, 5), probs, "rows")


def test_a_token_without_any_probability_is_found_even_once():
    with pytest.raises(AssertionError, match=r"the tokens \[2\], whose probability is 0"):
        check_frequencies(tokens_of([10, 10, 1]), torch.tensor([0.5, 0.5, 0.0]), "rows")


def test_a_certain_token_is_right():
    check_frequencies(tokens_of([0, 30]), torch.tensor([0.0, 1.0]), "rows")


def test_repeated_rows_differ_in_one_source_only():
    shift = SamplerCapabilities(stage="bias", fields=(RequestField("shift", float, 0.0),))
    one = sampled_rows(shift, [{"shift": 2.0}], seeds=[8], positions=[5], vocab_size=10)
    for varied in sample_frequencies.SOURCES:
        rows = repeated_row(one, 40, varied)
        numbers = {
            "seeds": rows.slot_fields["seed"][rows.slots],
            "children": rows.slot_fields["child"][rows.slots],
            "positions": rows.positions,
        }
        assert [name for name, each in numbers.items() if len(each.unique()) == 40] == [varied]
        assert rows.field("shift").unique().tolist() == [2.0]
        assert len(rows.host_fields) == len(rows.token_ids) == len(rows.slots.unique()) == 40
