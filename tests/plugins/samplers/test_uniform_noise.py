"""Uniform numbers from a hash: the hash is well distributed and stable."""

import torch

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.uniform_noise import mix, uniform

CAPABILITIES = SamplerCapabilities(stage="sample")
MASK = 2**64 - 1
EXPECTED = [
    0.8833108082136425,
    0.43152799704850997,
    0.7497482413580301,
    0.4507822097348828,
    0.6975217745343258,
]


def mix_in_python(word):
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & MASK
    return word ^ word >> 31


def numbers(seeds, positions, purpose=0):
    rows = sampled_rows(CAPABILITIES, [{}] * len(seeds), seeds=seeds, positions=positions)
    return uniform(rows, purpose)


def test_int64_mixes_as_unsigned_arithmetic_does():
    words = torch.randint(-(2**63), 2**63 - 1, (500,), generator=torch.Generator().manual_seed(0))
    expected = [mix_in_python(word & MASK) for word in words.tolist()]
    assert [word & MASK for word in mix(words).tolist()] == expected


def test_splitmix64_gives_its_published_sequence():
    golden = 0x9E3779B97F4A7C15
    state = [(1234567 + golden * i) & MASK for i in range(1, 6)]
    state = torch.tensor([word - 2**64 if word >= 2**63 else word for word in state])
    assert [word & MASK for word in mix(state).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_numbers_never_change():
    found = numbers([0, 0, 1, -5, 2**63 - 1], [1, 2, 1, 77, 100_000])
    assert found.tolist() == EXPECTED


def test_numbers_lie_in_the_unit_interval_and_fill_it():
    found = numbers(range(20_000), [3] * 20_000)
    assert found.min() >= 0
    assert found.max() < 1
    assert found.mul(100).long().bincount(minlength=100).sub(200).abs().max() < 75


def test_neighbours_are_not_correlated():
    grid = numbers(
        [seed for seed in range(100) for _ in range(100)],
        [position for _ in range(100) for position in range(1, 101)],
    ).view(100, 100)
    centred = grid - 0.5
    assert (centred[1:] * centred[:-1]).mean().abs() < 12 * 4e-4
    assert (centred[:, 1:] * centred[:, :-1]).mean().abs() < 12 * 4e-4


def test_purposes_are_apart():
    first, second = numbers(range(50), [1] * 50), numbers(range(50), [1] * 50, purpose=1)
    assert not (first == second).any()
