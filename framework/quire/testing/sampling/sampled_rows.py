"""Rows of logits with per-slot fields, as a worker builds them, for tests of sampler steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from random import Random
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.field_types import FieldType
from quire.interfaces.sampling import MAX_POSITION, SampledRows, SamplerCapabilities

FIELD_DTYPES = {float: torch.float32, int: torch.int64, bool: torch.bool}
NUM_SLOTS = 16
MAX_LEN = 32


@dataclass(frozen=True, slots=True)
class History:
    """Known tokens of a request when its next token is sampled.

    Attributes:
        token_ids: Prompt and completion so far; the sampled token takes the next position.
        num_prompt_tokens: Length of the prompt; the tokens after it were sampled.
    """

    token_ids: Sequence[int]
    num_prompt_tokens: int


ANY_HISTORY = History((4, 8, 15, 16, 23, 42, 8), num_prompt_tokens=5)


def sampled_rows(
    capabilities: SamplerCapabilities,
    fields: Sequence[Mapping[str, Any]],
    *,
    histories: Sequence[History] | None = None,
    states: Sequence[Mapping[str, float]] | None = None,
    seeds: Sequence[int] | None = None,
    children: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    stale_token: int = 0,
    all_greedy: bool = False,
    is_known_to_host: bool = True,
    device: str = "cpu",
    vocab_size: int = 0,
) -> SampledRows:
    """Build sampled rows as a worker does.

    Args:
        capabilities: Capabilities that declare the request fields.
        fields: Values of each row as steps get them, so texts as lists of token ids; a missing
            value is the field's default.
        histories: Known tokens of each row; None gives all rows the same seven tokens.
        states: States of each row that the step carries; those left out are 0.
        seeds: Seed of each row; None counts from 0.
        children: Child index of each row; None is 0 for all.
        positions: Position of each row; None is the length of its history.
        slots: Slot of each row; None counts from 0.
        stale_token: Token id of all entries of the token table that belong to no history.
        all_greedy: Value of `SampledRows.all_greedy`.
        is_known_to_host: Whether the rows have `host_fields`.
        device: Device of the tensors.
        vocab_size: V, the number of bits of a token set.
    """
    slots = range(len(fields)) if slots is None else slots
    histories = [ANY_HISTORY] * len(fields) if histories is None else histories
    if positions is None:
        positions = [len(history.token_ids) for history in histories]
    full = [
        {f.name: row.get(f.name, f.worker_default) for f in capabilities.fields} for row in fields
    ]
    num_slots = max(NUM_SLOTS, max(slots) + 1)

    def per_slot(values: Sequence[Any], dtype: torch.dtype) -> Tensor:  # [num_slots]
        out = torch.zeros(num_slots, dtype=dtype)
        out[list(slots)] = torch.tensor(values).to(dtype)
        return out

    slot_fields: dict[str, Tensor] = {}
    for f in capabilities.fields:
        values = [row[f.name] for row in full]
        if isinstance(f.type, FieldType):
            slot_fields |= _columns(f.name, f.type, num_slots, slots, values, vocab_size)
        else:
            slot_fields[f.name] = per_slot(values, FIELD_DTYPES[f.type])
    given = [{}] * len(full) if states is None else states
    for name in capabilities.states:
        slot_fields[name] = per_slot([state.get(name, 0.0) for state in given], torch.float32)
    slot_fields["seed"] = per_slot(range(len(full)) if seeds is None else seeds, torch.int64)
    slot_fields["child"] = per_slot([0] * len(full) if children is None else children, torch.int64)
    num_counted, counts = _token_counts(slots, histories, positions, num_slots, vocab_size)
    counted = num_counted.tolist()
    rows = SampledRows(
        slots=torch.tensor(list(slots)),
        positions=torch.tensor(list(positions)),
        slot_fields=slot_fields,
        token_ids=_token_table(num_slots, slots, histories, stale_token),
        num_prompt_tokens=per_slot([each.num_prompt_tokens for each in histories], torch.int64),
        all_greedy=all_greedy,
        host_fields=full if is_known_to_host else (),
        max_position=max(positions) if is_known_to_host else MAX_POSITION,
        output_counts=counts if capabilities.reads_counts else None,
        num_counted=num_counted,
        max_uncounted=max(
            position - counted[slot] for slot, position in zip(slots, positions, strict=True)
        ),
    )
    return on_device(rows, torch.device(device))


def on_device(rows: SampledRows, device: torch.device) -> SampledRows:
    """Return the rows with all tensors on `device`."""
    return replace(
        rows,
        slots=rows.slots.to(device),
        positions=rows.positions.to(device),
        slot_fields={name: per_slot.to(device) for name, per_slot in rows.slot_fields.items()},
        token_ids=rows.token_ids.to(device),
        num_prompt_tokens=rows.num_prompt_tokens.to(device),
        output_counts=None if rows.output_counts is None else rows.output_counts.to(device),
        num_counted=None if rows.num_counted is None else rows.num_counted.to(device),
    )


def shard_of(logits: Tensor, rows: SampledRows, token_ids: range) -> tuple[Tensor, SampledRows]:
    """Return a copy of the logits of some consecutive tokens, and the rows with the first id."""
    shard = logits[:, token_ids.start : token_ids.stop].clone()
    return shard, replace(rows, first_token_id=token_ids.start)


def vocabulary_splits(vocab_size: int) -> Iterator[list[range]]:
    """Return splits of the vocabulary into shards of random sizes, the same for each call."""
    random = Random(7)
    for num_cuts in range(1, min(6, vocab_size)):
        cuts = sorted(random.sample(range(1, vocab_size), num_cuts))
        yield [range(*ends) for ends in pairwise([0, *cuts, vocab_size])]


def random_logits(num_rows: int, vocab_size: int, scale: float) -> Tensor:  # [N, V]
    """Return random logits, the same for each call."""
    random = torch.Generator().manual_seed(5)
    return torch.randn(num_rows, vocab_size, generator=random) * scale


def _columns(
    name: str,
    kind: FieldType,
    num_slots: int,
    slots: Sequence[int],
    values: Sequence[Any],
    vocab_size: int,
) -> dict[str, Tensor]:
    """Return the columns of a field; cells that a value leaves over hold a stale 3."""
    found = {}
    for index, column in enumerate(kind.columns(vocab_size)):
        dtype = torch.float32 if column.is_float else torch.int32
        cells = torch.full((num_slots, prod(column.shape)), 3, dtype=dtype)
        for slot, value in zip(slots, values, strict=True):
            own = list(kind.cells(value, vocab_size)[index])
            cells[slot, : len(own)] = torch.tensor(own, dtype=dtype)
        found[name + column.suffix] = cells.view(num_slots, *column.shape)
    return found


def _token_counts(
    slots: Sequence[int],
    histories: Sequence[History],
    positions: Sequence[int],
    num_slots: int,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:  # [num_slots] int64, [num_slots, V] int32
    """Return the counts of sampled tokens up to the first row of each slot."""
    num_counted = torch.zeros(num_slots, dtype=torch.int64)
    counts = torch.full((num_slots, vocab_size), 7, dtype=torch.int32)  # stale in free slots
    ends: dict[int, int] = {}
    for slot, position in zip(slots, positions, strict=True):
        ends[slot] = min(position, ends.get(slot, position))
    num_counted[list(ends)] = torch.tensor(list(ends.values()))
    counts[list(ends)] = 0
    for slot, history in dict(zip(slots, histories, strict=True)).items():
        end = ends[slot]
        for token_id in history.token_ids[history.num_prompt_tokens : end]:
            if token_id < vocab_size:
                counts[slot, token_id] += 1
    return num_counted, counts


def _token_table(
    num_slots: int, slots: Sequence[int], histories: Sequence[History], stale_token: int
) -> Tensor:  # [num_slots, max_len] int32
    max_len = max([MAX_LEN, *(len(history.token_ids) + 1 for history in histories)])
    table = torch.full((num_slots, max_len), stale_token, dtype=torch.int32)
    for slot, history in zip(slots, histories, strict=True):
        table[slot, : len(history.token_ids)] = torch.tensor(history.token_ids, dtype=torch.int32)
    return table
