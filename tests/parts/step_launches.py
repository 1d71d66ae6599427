"""The launches that gather a step's inputs, on tensors that are never read."""

import torch

from quire.messages import ScheduledRequest, SlotAssignment
from quire.worker.batch.device_inputs import DeviceInputs
from quire.worker.batch.slots import SlotTables


def every_gather() -> None:
    """Gather for one KV group, for several, and for none; captured and eager."""
    for num_groups in (0, 1, 3):
        tables = SlotTables(
            64, 4096, [256] * num_groups, [], torch.device("cpu"), has_device_blocks=True
        )
        inputs = DeviceInputs(tables, [16] * num_groups, 8192)
        tables.assign(
            SlotAssignment(
                slot=0,
                token_ids=[1] * 40,
                num_computed_tokens=0,
                block_ids=[[1, 2, 3]] * num_groups,
                num_prompt_tokens=40,
                fields={},
                seed=0,
                child=0,
            )
        )
        inputs.build([ScheduledRequest(0, 40, 1)])
        inputs.gather_decode(1)
        inputs.gather_decode(64)
