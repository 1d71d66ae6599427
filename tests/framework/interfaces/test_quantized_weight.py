"""A quantized weight is its values times scales plus offsets, in any rows and columns of it."""

from dataclasses import replace

import pytest
import torch

from quire.interfaces.quantized_weight import QuantizedStack, QuantizedWeight

NUM_ROWS, NUM_COLUMNS, GROUP = 6, 10, 4


def made(*, has_offsets=True, groups=None) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (NUM_ROWS, NUM_COLUMNS), generator=generator, dtype=torch.uint8)
    scales, offsets = torch.randn(2, NUM_ROWS, 3, generator=generator)
    table = torch.randn(16, generator=generator)
    return QuantizedWeight(codes, scales, table, GROUP, offsets if has_offsets else None, groups)


def by_the_definition(weight: QuantizedWeight) -> torch.Tensor:
    out = torch.empty(weight.shape)
    for n in range(weight.shape[0]):
        for k in range(weight.shape[1]):
            g = k // weight.group_size if weight.groups is None else int(weight.groups[k])
            offset = 0.0 if weight.offsets is None else weight.offsets[n, g]
            out[n, k] = weight.table[int(weight.codes[n, k])] * weight.scales[n, g] + offset
    return out


@pytest.mark.parametrize("has_offsets", [True, False])
@pytest.mark.parametrize("groups", [None, torch.tensor([2, 1, 0, 0, 1, 2, 2, 2, 1, 0])])
def test_every_element_is_as_defined_and_so_is_every_part(has_offsets, groups):
    weight = made(has_offsets=has_offsets, groups=groups)
    expected = by_the_definition(weight)
    torch.testing.assert_close(weight.dequantized(), expected)
    assert weight.rows(torch.arange(NUM_ROWS)) is weight
    rows = torch.tensor([5, 0, 0, 3])
    torch.testing.assert_close(weight.rows(rows).dequantized(), expected[rows])
    for columns in (range(10), range(4, 8), range(8, 10), range(3, 9), range(5, 6)):
        part = weight.columns(columns)
        assert part.shape == (NUM_ROWS, len(columns))
        torch.testing.assert_close(part.dequantized(), expected[:, columns.start : columns.stop])


def test_a_part_has_the_inputs_of_the_whole():
    weight = replace(made(), has_int8_inputs=True)
    assert weight.rows(torch.tensor([1, 0])).has_int8_inputs
    assert weight.columns(range(3, 9)).has_int8_inputs
    assert not made().has_int8_inputs


def test_a_part_of_a_part_is_a_part():
    weight = made()
    part = weight.columns(range(3, 9)).columns(range(2, 5))
    torch.testing.assert_close(part.dequantized(), weight.dequantized()[:, 5:8])


def test_a_large_weight_is_dequantized_in_pieces(monkeypatch):
    weight = made()
    expected = weight.dequantized()
    monkeypatch.setattr("quire.interfaces.quantized_weight.CHUNK_ELEMENTS", 2 * NUM_COLUMNS + 1)
    assert torch.equal(weight.dequantized(), expected)


def test_the_weights_of_a_stack_are_decoded_one_by_one():
    decoded = []

    def decode(index):
        decoded.append(index)
        return replace(made(), group_size=index + 4)

    experts = iter(QuantizedStack(3, decode))
    assert next(experts).group_size == 4
    assert decoded == [0]
    assert [expert.group_size for expert in experts] == [5, 6]
