"""The first steps, before any request: what always fails stops start-up, and is not called ready.

They go through all that a request will: embedding, every attention backend and its part of the
cache, the head, each step of the sampler pipeline and the draw. Kernels are compiled by them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from quire.errors import QuireError, RefusedError, RequestFailedError
from quire.messages import ScheduledRequest
from quire.worker.batch.step_results import NOT_A_NUMBER, why_unsound
from quire.worker.device.device_faults import end_if_device_failed
from quire.worker.memory.device_memory import is_out_of_memory
from quire.worker.model_runner import ModelRunner
from quire.worker.sampling.sampled_tokens import SampledTokens

Lengths = tuple[int, ...]  # the tokens of each request of a step

STEPS: tuple[Lengths, ...] = ((2, 1), (1,))  # a step that is not all decode, and one that is
STEPS_WITH_KERNELS: tuple[Lengths, ...] = ((40, 1), *STEPS)  # many tokens are computed otherwise

OTHER_BACKEND = "choose another attention backend by name (--attention-backend)"
OTHER_SAMPLERS = "choose other samplers by name (--samplers)"


def compute_first_steps(
    runner: ModelRunner, max_num_tokens: int, steps: Sequence[Lengths] = STEPS
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
    for lengths in steps:
        _compute(runner, [min(length, max_num_tokens) for length in lengths])


@torch.inference_mode()
def _compute(runner: ModelRunner, lengths: Sequence[int]) -> None:
    with _part(runner.computed_by, OTHER_BACKEND):
        rows = _last_rows(runner, lengths)
    with _part(runner.computed_by):
        logits = runner.logits_of(rows)
        _check_numbers(logits, runner.computed_by)
    with _part(runner.pipeline.sampler_name, OTHER_SAMPLERS):
        for sampled in runner.pipeline.warm_up(logits):
            _check_sampled(sampled, runner.pipeline.sampler_name)


def _last_rows(runner: ModelRunner, lengths: Sequence[int]) -> Tensor:  # [N, hidden_size]
    """Return the hidden states that tokens are drawn from."""
    slots = range(runner.tables.padding_slot)
    requests = [
        ScheduledRequest(slot, length, 1) for slot, length in zip(slots, lengths, strict=False)
    ]
    inputs, adapters = runner.inputs_of(requests), None
    if runner.adapters is not None and runner.device_inputs is not None:  # kernels to compile
        adapters = runner.device_inputs.adapter_batch(len(inputs.input_ids))
    hidden_states = runner.computed_hidden_states(inputs, adapters)
    return hidden_states if inputs.last_rows is None else hidden_states[inputs.last_rows]


def _check_numbers(logits: Tensor, computed_by: str) -> None:  # [N, V] float32
    if not logits.amax(-1).isfinite().all():
        raise RequestFailedError(f"{computed_by}: {NOT_A_NUMBER.message}")


def _check_sampled(sampled: SampledTokens, sampler_name: str) -> None:
    found = sampled.read()
    for token_id, is_sound in zip(found.token_ids, found.is_sound, strict=True):
        if not is_sound:
            raise RequestFailedError(
                why_unsound(token_id, sampled.vocab_size, sampler_name).message
            )


@contextmanager
def _part(name: str, *other_choice: str) -> Iterator[None]:
    """Name what fails, and the ways out: this part of a step may be one of the user's choice."""
    try:
        yield
    except Exception as error:  # the edge of model, backend and sampler plugins
        end_if_device_failed(error)
        if isinstance(error, RuntimeError | OSError) and is_out_of_memory(error):
            raise
        ways_out = ("correct that part", *other_choice, "or leave its plugin out (-p no:NAME)")
        raise RefusedError(
            f"the first step cannot be computed: {_told(name, error)}; {', '.join(ways_out)}"
        ) from error


def _told(name: str, error: Exception) -> str:
    if isinstance(error, QuireError):
        return str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"
    return f"{name} failed: {type(error).__name__}: {error}"
