"""Columns of fields that are more than a number."""

import torch

from quire.interfaces.field_types import ListOf, OneOf, TokenMap, TokenSet, TokenTexts
from quire.interfaces.sampling import RequestField, SampledRows
from quire.worker.batch.field_columns import FieldColumns

V = 70
FIELDS = (
    RequestField("number", float, 1.0),
    RequestField("mode", OneOf(("off", "on")), "on"),
    RequestField("curve", ListOf(float, 3), []),
    RequestField("bias", TokenMap(3), {}),
    RequestField("allowed", TokenSet(), []),
    RequestField("breakers", TokenTexts(3, max_tokens=2), [[5], [6, 7]]),
)


def rows_of(columns, slots):
    index = torch.tensor(slots)
    return SampledRows(
        slots=index, positions=index, slot_fields=columns.device, num_prompt_tokens=index,
        token_ids=torch.arange(12).view(3, 4),
    )  # fmt: skip


def make():
    return FieldColumns(FIELDS, 3, V, torch.device("cpu"))


def test_each_slot_has_its_values_and_the_defaults_of_others():
    columns = make()
    columns.write(1, {"mode": "off", "curve": [0.5, -2.0], "bias": {7: 1.5}, "allowed": [0, 69]})
    columns.write(0, {})
    columns.push()
    rows = rows_of(columns, [1, 0])
    assert rows.field("mode").tolist() == [[0], [1]]
    assert rows.column("curve")[0, :2].tolist() == [0.5, -2.0]
    assert rows.is_item("curve").tolist() == [[True, True, False], [False] * 3]
    assert (rows.column("bias.keys")[0, 0], rows.column("bias")[0, 0]) == (7, 1.5)
    assert rows.column("allowed").tolist()[0] == [1, 0, 1 << 5]
    assert rows.column("allowed.count").tolist() == [[2], [0]]
    assert rows.column("breakers")[1, :2].tolist() == [[5, 0], [6, 7]]
    assert rows.column("breakers.lengths")[1, :2].tolist() == [1, 2]


def test_a_slot_that_is_given_out_again_keeps_nothing():
    columns = make()
    columns.write(2, {"allowed": list(range(V)), "curve": [1.0, 2.0, 3.0]})
    columns.push()
    columns.write(2, {"allowed": [3], "curve": [4.0]})
    columns.push()
    rows = rows_of(columns, [2])
    assert rows.column("allowed").tolist() == [[8, 0, 0]]
    assert rows.column("curve")[rows.is_item("curve")].tolist() == [4.0]


def test_only_values_that_changed_are_sent():
    columns = make()
    columns.write(0, {"curve": [1.0]})
    columns.push()
    columns.device["curve"].fill_(9.0)
    columns.write(0, {"curve": [1.0], "bias": {1: 1.0}})
    columns.push()
    assert columns.device["curve"][0, 0] == 9.0, "the same value again was sent"
    assert columns.device["bias"][0, 0] == 1.0


def test_tokens_are_known_up_to_the_position_of_the_row():
    rows = rows_of(make(), [1, 2])  # the positions are 1 and 2
    token_ids, is_known = rows.known_tokens(0, rows.num_known)
    assert is_known.tolist() == [[True, False, False, False], [True, True, False, False]]
    assert token_ids.tolist() == [[4, 0, 0, 0], [8, 9, 0, 0]]
    token_ids, is_known = rows.known_tokens(1, 3)
    assert (token_ids.tolist(), is_known.tolist()) == (
        [[0, 0], [9, 0]],
        [[False] * 2, [True, False]],
    )
