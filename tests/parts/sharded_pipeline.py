"""Sampling pipelines of the ranks of a tensor-parallel group, and steps that work on shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from sampler_parts import tables_with
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, RequestField, Sampler
from quire.layers import TensorParallelGroup
from quire.layers.vocabulary import VocabularyShard
from quire.messages import RowBitmask
from quire.testing.model.threaded_ranks import ThreadedGroup, run_ranks
from quire.worker.sampling.sampled_tokens import HostTokens
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.gumbel.cpu_gumbel import CpuGumbel
from quire_samplers.gumbel.gumbel import Gumbel
from quire_samplers.gumbel.torch_gumbel import TorchGumbel
from quire_samplers.temperatures.temperature import Temperature

CPU = torch.device("cpu")
FIELDS = (RequestField("penalty", float, 0.0), RequestField("bias", float, 0.0))
DEFAULTS = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty": 0.0, "bias": 0.0,
}  # fmt: skip


class Penalty(LogitsProcessor):
    """Subtracts `penalty` from the tokens that a request has already."""

    def is_neutral(self, fields):
        return fields["penalty"] == 0

    def apply(self, logits, rows):
        known = rows.token_ids[rows.slots].long()  # [N, L]
        is_known = torch.arange(known.shape[1]) < rows.positions.unsqueeze(1)
        penalties = torch.zeros(len(logits), self.vocab_size)
        penalties.scatter_reduce_(1, known, is_known * rows.field("penalty"), "amax")
        return logits - penalties[:, rows.first_token_id :][:, : logits.shape[1]]


class Bias(LogitsProcessor):
    """Adds `bias` to every third token."""

    def is_neutral(self, fields):
        return fields["bias"] == 0

    def apply(self, logits, rows):
        logits[:, -rows.first_token_id % 3 :: 3] += rows.field("bias")
        return logits


class OneAtATime(Gumbel):
    """Runs one kernel at a time: Triton's interpreter has one state for all threads."""

    lock = Lock()

    def _locked(self, sample, *arguments):
        with self.lock:
            return sample(*arguments)

    def sample(self, *given):
        return self._locked(super().sample, *given)

    def sample_fused(self, *given):
        return self._locked(super().sample_fused, *given)

    def sample_shard(self, *given):
        return self._locked(super().sample_shard, *given)

    def sample_shard_fused(self, *given):
        return self._locked(super().sample_shard_fused, *given)


class WholeRows(TorchGumbel):
    """A sampler that does not declare that it works on shards."""


STEPS: dict[type[LogitsProcessor], Any] = {
    Penalty: "penalty",
    Bias: "bias",
    Temperature: "temperature",
    MinP: "filter",
    TopKTopP: "filter",
}
FUSED = (2, 3, 4)
WORK_ON_SHARDS = (Penalty, Bias, Temperature, TorchGumbel, Gumbel, OneAtATime, CpuGumbel)
KINDS: dict[str, tuple[type[Sampler], bool]] = {
    "whole rows": (WholeRows, False),
    "torch_gumbel": (TorchGumbel, False),
    "gumbel": (OneAtATime, False),
    "gumbel, fused": (OneAtATime, True),
    "cpu_gumbel": (CpuGumbel, False),
    "cpu_gumbel, fused": (CpuGumbel, True),
}


@dataclass(frozen=True)
class Batch:
    """Rows to sample: a request each."""

    requests: Sequence[dict[str, Any]]
    logits: Tensor  # [N, V]
    masks: Sequence[RowBitmask] = ()
    logprobs_mode: str = "raw_logprobs"


@dataclass(frozen=True)
class Sampled:
    """What one rank sampled, and how many bytes it sent for it in each collective."""

    tokens: HostTokens
    sent_bytes: list[int]


def pipeline_of(
    requests: Sequence[dict[str, Any]],
    vocab_size: int,
    kind: str,
    group: TensorParallelGroup,
    logprobs_mode: str = "raw_logprobs",
) -> SamplingPipeline:
    """Build a rank's pipeline, with a slot for each request."""
    sampler, fuses = KINDS[kind]
    tables = tables_with(requests, FIELDS)
    classes = (*STEPS, sampler)
    pipeline = SamplingPipeline(
        [(stage, step(vocab_size, CPU)) for step, stage in STEPS.items()],
        sampler(vocab_size, CPU),
        tables,
        [step.__name__ for step in classes],
        fused=FUSED if fuses else (),
        vocabulary=VocabularyShard(vocab_size, group),
        vocab_parallel=[i for i, step in enumerate(classes) if step in WORK_ON_SHARDS],
        logprobs_mode=logprobs_mode,
    )
    for slot, request in enumerate(requests):
        tables.info_of(slot).active_steps = pipeline.active_steps(
            {**DEFAULTS, **request}, has_logprobs="num_logprobs" in request
        )
    return pipeline


def shard_of(logits: Tensor, pipeline: SamplingPipeline) -> Tensor:
    """Return a copy of the logits that the rank has."""
    token_ids = pipeline.vocabulary.token_ids
    return logits[:, token_ids.start : token_ids.stop].clone()


def sample_on_ranks(batch: Batch, tp_size: int, kind: str) -> list[Sampled]:
    """Sample on every rank of a group."""
    vocab_size, slots = batch.logits.shape[1], list(range(len(batch.requests)))

    def sample(group: ThreadedGroup) -> Sampled:
        pipeline = pipeline_of(batch.requests, vocab_size, kind, group, batch.logprobs_mode)
        local = shard_of(batch.logits, pipeline)
        sampled = pipeline.run(local, slots, torch.tensor(slots), batch.masks)
        return Sampled(sampled.read(), group.sent_bytes)

    return run_ranks(tp_size, sample)
