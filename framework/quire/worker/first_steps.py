"""The first steps, before any request: what always fails stops start-up, and is not called ready.

They go through all that a request will: embedding, every attention backend and its part of the
cache, the head, each step of the sampler pipeline and the draw. Kernels are compiled by them, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire.errors import QuireError, RefusedError
from quire.messages import ScheduledRequest
from quire.worker.device_faults import end_if_device_failed
from quire.worker.memory import is_out_of_memory
from quire.worker.model_runner import ModelRunner

Lengths = tuple[int, ...]  # the tokens of each request of a step

FEW: tuple[Lengths, ...] = ((2, 1), (1,))  # a step that is not all decode, and one that is
COMPILED: tuple[Lengths, ...] = ((40, 1), *FEW)  # kernels take a request of many tokens otherwise


def compute_first_steps(
    runner: ModelRunner, max_num_tokens: int, steps: Sequence[Lengths] = FEW
) -> None:
    """Compute steps of a few tokens, through every part of the runner.

    They read the tables of slots that are not given out, so what they write goes to the null block.
    They sample for the padding slot, and note no token.

    Args:
        runner: Whose parts are tried.
        max_num_tokens: Of one request, in one step.
        steps: What each step computes.

    Raises:
        RefusedError: A part fails; the message names it and its plugin.
        EngineDeadError: The device fails.
        RuntimeError: There is not enough memory.
        OSError: The same, where the system says so.
    """
    try:
        for lengths in steps:
            _compute(runner, [min(length, max_num_tokens) for length in lengths])
    except Exception as error:  # the edge of model, backend and sampler plugins
        end_if_device_failed(error)
        if isinstance(error, RuntimeError | OSError) and is_out_of_memory(error):
            raise
        raise _refusal(runner, error) from error


@torch.inference_mode()
def _compute(runner: ModelRunner, lengths: Sequence[int]) -> None:
    slots = range(runner.tables.spare_slot)
    requests = [
        ScheduledRequest(slot, length, 1) for slot, length in zip(slots, lengths, strict=False)
    ]
    inputs, adapters = runner.inputs_of(requests), None
    if runner.adapters is not None and runner.device_inputs is not None:  # kernels to compile
        adapters = runner.device_inputs.adapter_batch(len(inputs.input_ids))
    hidden_states = runner.computed_hidden_states(inputs, adapters)
    rows = hidden_states if inputs.last_rows is None else hidden_states[inputs.last_rows]
    runner.pipeline.warm_up(runner.logits_of(rows))


def _refusal(runner: ModelRunner, error: Exception) -> RefusedError:
    told = f"{runner.computed_by} failed: {type(error).__name__}: {error}"
    if isinstance(error, QuireError):
        told = str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"
    return RefusedError(
        f"the first step cannot be computed: {told}; correct that part, choose another by name "
        "(--attention-backend, --samplers), or leave its plugin out (-p no:NAME)"
    )
