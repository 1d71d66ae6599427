"""Chi-square test of sampled tokens against the probabilities that they should have."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.interfaces.sampling import SampledRows

FALSE_ALARM = 1e-6  # probability with which a right sampler fails one comparison
MIN_EXPECTED = 10  # samples per class, below which the chi-square distribution does not fit
SOURCES = ("seeds", "children", "positions")  # sources of randomness


def repeated_row(rows: SampledRows, num_rows: int, varied: str) -> SampledRows:
    """Return rows like the one in slot 0, each in a slot of its own, and other in one source.

    Args:
        rows: Rows with that one first.
        num_rows: Number of rows to return.
        varied: The source of randomness in which they differ, one of `SOURCES`; the others are 3.
    """

    def repeated(per_slot: Tensor) -> Tensor:
        return per_slot[:1].repeat(num_rows, *[1] * (per_slot.dim() - 1))

    numbers = torch.arange(1, num_rows + 1, device=rows.slots.device)
    seeds, children, positions = (
        numbers if source == varied else torch.full_like(numbers, 3) for source in SOURCES
    )
    slot_fields = {name: repeated(values) for name, values in rows.slot_fields.items()}
    return replace(
        rows,
        slots=numbers - 1,
        positions=positions,
        slot_fields=slot_fields | {"seed": seeds, "child": children},
        token_ids=repeated(rows.token_ids),
        num_prompt_tokens=repeated(rows.num_prompt_tokens),
        host_fields=[*rows.host_fields[:1]] * num_rows,
        max_position=num_rows,
    )


def check_frequencies(token_ids: Tensor, probs: Tensor, sampled_rows: str) -> None:
    """Check that the tokens of many rows occur as often as their probabilities say.

    The samples are fixed by the rows, so a sampler fails always or never. One whose
    randomness is right fails with a probability of about `FALSE_ALARM`.

    Args:
        token_ids: Sampled tokens, `[N]` int64.
        probs: Probability of each token, `[V]`.
        sampled_rows: Description of the rows for the message.

    Raises:
        AssertionError: A token without any probability occurs, or the frequencies are too unlikely.
    """
    observed = torch.bincount(token_ids.cpu(), minlength=len(probs)).double()
    expected = probs.cpu().double() / probs.cpu().double().sum() * len(token_ids)
    impossible = ((observed > 0) & (expected == 0)).nonzero().flatten().tolist()
    assert not impossible, f"{sampled_rows} give the tokens {impossible}, whose probability is 0"
    p_value = _p_value(*_classes(observed, expected))
    worst = int((observed - expected).abs().argmax())
    assert p_value >= FALSE_ALARM, (
        f"{sampled_rows} do not follow the probabilities of the tokens: right samples differ as "
        f"much with a probability of {p_value:.1e}; token {worst} occurs {int(observed[worst])} "
        f"times of {len(token_ids)}, and {expected[worst]:.0f} times are expected"
    )


def _classes(observed: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:  # [V] -> [classes]
    """Put the rare tokens into one class with the least likely of the others."""
    order = expected.argsort(descending=True)
    observed, expected = observed[order], expected[order]
    num_alone = max(1, int((expected >= MIN_EXPECTED).sum()))
    if expected[num_alone:].sum() < MIN_EXPECTED:
        num_alone -= 1
    counts = [torch.cat((each[:num_alone], each[num_alone:].sum(0, keepdim=True)))
              for each in (observed, expected)]  # fmt: skip
    return counts[0], counts[1]


def _p_value(observed: Tensor, expected: Tensor) -> float:  # [classes]
    """Return the probability with which right samples differ at least as much."""
    if len(observed) < 2:
        return 1.0
    chi_square = ((observed - expected) ** 2 / expected).sum()
    half = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, chi_square / 2))
