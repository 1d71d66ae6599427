"""A step with a companion's prompt, tried on rows that have companions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.sampling import LogitsProcessor, SampledRows, SamplerCapabilities


class BesideCompanions(LogitsProcessor):
    """Applies a step to rows and a companion of each, and returns the rows.

    The logits of a companion are a function of those of its row, so that a row has the same
    companion alone and in a batch. Companions have neutral fields, and must keep their logits.

    Args:
        step: Step under test.
        capabilities: Its capabilities, which declare the fields.
    """

    def __init__(self, step: LogitsProcessor, capabilities: SamplerCapabilities) -> None:
        super().__init__(step.vocab_size, step.device)
        self._step = step
        self._defaults = {field.name: field.worker_default for field in capabilities.fields}

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return what the step says."""
        return self._step.is_neutral(fields)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V]
        """Apply the step, and check the logits of the companions."""
        num_rows = len(logits)
        others = -logits.abs()
        out = self._step.apply(torch.cat((logits, others)), self._with_companions(rows))
        if out.device.type == "cpu":  # elsewhere it would wait for the device
            assert torch.equal(out[num_rows:], others), "the logits of companions were changed"
        return out[:num_rows]

    def _with_companions(self, rows: SampledRows) -> SampledRows:
        """Return the rows, and behind them one for each companion, all of a slot of their own."""
        num_rows, slot = len(rows.slots), len(rows.token_ids)
        slot_fields = {name: _longer(values) for name, values in rows.slot_fields.items()}
        for name, default in self._defaults.items():
            if isinstance(default, int | float):
                slot_fields[name][slot] = default
        numbers = torch.arange(2 * num_rows, device=rows.slots.device)
        return replace(
            rows,
            slots=torch.cat((rows.slots, torch.full_like(rows.slots, slot))),
            positions=rows.positions.repeat(2),
            slot_fields=slot_fields,
            token_ids=_longer(rows.token_ids),
            num_prompt_tokens=_longer(rows.num_prompt_tokens),
            host_fields=[*rows.host_fields, *[self._defaults] * len(rows.host_fields)],
            guided=numbers[:num_rows],
            companions=numbers[num_rows:],
        )


def _longer(per_slot: Tensor) -> Tensor:
    """Return a table with one more slot, of zeros."""
    return torch.cat((per_slot, per_slot.new_zeros(1, *per_slot.shape[1:])))


def has_companions(capabilities: SamplerCapabilities) -> bool:
    """Return whether rows of a step have companions."""
    return any(isinstance(field.type, CompanionPrompt) for field in capabilities.fields)
