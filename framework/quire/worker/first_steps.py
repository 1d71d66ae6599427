"""Warm-up steps before the first request: a part that always fails stops start-up.

They run every part that a request will use: the embedding, each attention backend with its KV
cache, the LM head, each logits processor and the sampler. They also compile the kernels. Pipeline
stages run them together, and pass tensors on as in any step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from quire.errors import QuireError, RefusedError, RequestFailedError
from quire.messages import ErrorReport, ScheduledRequest
from quire.worker.batch.step_results import INVALID_LOGITS, invalid_token_error
from quire.worker.device.device_faults import end_if_device_failed
from quire.worker.memory.device_memory import is_out_of_memory
from quire.worker.model_runner import ModelRunner
from quire.worker.sampling.sampled_tokens import SampledTokens

Lengths = tuple[int, ...]  # number of tokens of each request of a step

STEPS: tuple[Lengths, ...] = ((2, 1), (1,))  # a mixed step, and a decode step
STEPS_WITH_KERNELS: tuple[Lengths, ...] = ((40, 1), *STEPS)  # with a long prefill

OTHER_BACKEND = "choose another attention backend by name (--attention-backend)"
OTHER_SAMPLERS = "choose other samplers by name (--samplers)"


def run_warm_up_steps(
    runner: ModelRunner, max_num_tokens: int, steps: Sequence[Lengths] = STEPS
) -> None:
    """Run steps of a few tokens through every part of the runner.

    They use slots that are not assigned, so their KV is written to the null block. They sample for
    the padding slot, and append no token.

    Args:
        runner: Runner to warm up.
        max_num_tokens: Maximum number of tokens of one request in one step.
        steps: Number of tokens of each request, for each step.

    Raises:
        RefusedError: A part fails; the message names it and its plugin.
        EngineDeadError: The device fails.
        RuntimeError: The device has not enough memory.
        OSError: The host has not enough memory.
    """
    for lengths in steps:
        _compute(runner, [min(length, max_num_tokens) for length in lengths])


@torch.inference_mode()
def _compute(runner: ModelRunner, lengths: Sequence[int]) -> None:
    with _name_failures(runner.computed_by, OTHER_BACKEND):
        rows = _last_rows(runner, lengths)
    if not runner.stage.is_last:
        return
    with _name_failures(runner.computed_by):
        logits = runner.logits_of(rows)
        _check_finite(runner.pipeline.vocabulary.gather(logits), runner.computed_by)
    with _name_failures(runner.pipeline.sampler_name, OTHER_SAMPLERS):
        for sampled in runner.pipeline.warm_up(logits):
            _check_sampled(sampled, runner.pipeline.sampler_name)


def _last_rows(runner: ModelRunner, lengths: Sequence[int]) -> Tensor:  # [N, hidden_size]
    """Run the model, and return the hidden states of the rows to sample."""
    slots = range(runner.tables.padding_slot)
    requests = [
        ScheduledRequest(slot, length, 1) for slot, length in zip(slots, lengths, strict=False)
    ]
    inputs, adapters = runner.inputs_of(requests), None
    if runner.adapters is not None and runner.device_inputs is not None:  # kernels to compile
        adapters = runner.device_inputs.adapter_batch(len(inputs.input_ids))
    hidden_states = runner.hidden_states_of(inputs, adapters)
    return hidden_states if inputs.last_rows is None else hidden_states[inputs.last_rows]


def _check_finite(logits: Tensor, computed_by: str) -> None:  # [N, V]
    if not logits.amax(-1).isfinite().all():
        raise RequestFailedError(f"{computed_by}: {INVALID_LOGITS.message}")


def _check_sampled(sampled: SampledTokens, sampler_name: str) -> None:
    found = sampled.read()
    for token_id, is_valid in zip(found.token_ids, found.is_valid, strict=True):
        if not is_valid:
            raise RequestFailedError(
                invalid_token_error(token_id, sampled.vocab_size, sampler_name).message
            )
    for state in found.states:
        if isinstance(state, ErrorReport):
            raise RequestFailedError(state.message)


@contextmanager
def _name_failures(name: str, *other_choice: str) -> Iterator[None]:
    """Turn an error into a RefusedError that names the failed part and the remedies.

    Args:
        name: Name of the part and its plugin.
        other_choice: Advice on choosing another part, if the user can.
    """
    try:
        yield
    except Exception as error:  # the edge of model, backend and sampler plugins
        end_if_device_failed(error)
        if isinstance(error, RuntimeError | OSError) and is_out_of_memory(error):
            raise
        remedies = ("correct that part", *other_choice, "or leave its plugin out (-p no:NAME)")
        raise RefusedError(
            f"a warm-up step failed: {_failure_text(name, error)}; {', '.join(remedies)}"
        ) from error


def _failure_text(name: str, error: Exception) -> str:
    if isinstance(error, QuireError):
        return str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"
    return f"{name} failed: {type(error).__name__}: {error}"
