"""Slots with sampler fields, for tests of drawing."""

import torch

from quire.messages import RowBitmask, SlotAssignment
from quire.worker.batch.slots import SlotTables
from quire_samplers.plugin import MIN_P, TEMPERATURE, TOP_K, TOP_P

FIELDS = (TEMPERATURE, TOP_K, TOP_P, MIN_P)
NUM_PROMPT_TOKENS = 3


def tables_with(requests, extra_fields=(), states=()):
    """Tables with a slot for each request: its sampler fields, and what `SlotAssignment` takes."""
    fields = (*FIELDS, *extra_fields)
    tables = SlotTables(len(requests), 32, [4], fields, torch.device("cpu"), states=states)
    names = {field.name for field in fields}
    for slot, request in enumerate(requests):
        others = {"num_generated": 0} | {k: v for k, v in request.items() if k not in names}
        num_known = NUM_PROMPT_TOKENS + others.pop("num_generated")
        message = SlotAssignment(
            slot=slot,
            token_ids=list(range(num_known)),
            num_computed_tokens=0,
            block_ids=[[]],
            num_prompt_tokens=NUM_PROMPT_TOKENS,
            fields={field.name: request.get(field.name, field.worker_default) for field in fields},
            seed=slot + 5,
            child=0,
            **others,
        )
        tables.assign(message)
        tables.write_fields(message)
    tables.push()
    return tables


def bitmask(slot, allowed, vocab_size):
    """The mask of a grammar that allows these tokens."""
    bits = sum(1 << token_id for token_id in allowed)
    return RowBitmask(slot, 0, bits.to_bytes(-(-vocab_size // 32) * 4, "little"))
