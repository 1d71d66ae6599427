"""A logits processor that runs for the requests that name it in `logits_processors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire.layers.returned import check_returned
from quire.worker.device.copies import upload

NAMES = "logits_processors"  # among the sampler fields of a request


class OptInStep(LogitsProcessor):
    """A step that declares `is_opt_in`; rows of other requests do not reach it.

    In the warm-up there are no requests, and it runs for all rows.

    Args:
        name: Name that it is registered with.
        step: The step itself.
    """

    def __init__(self, name: str, step: LogitsProcessor) -> None:
        super().__init__(step.vocab_size, step.device)
        self._name = name
        self._step = step

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the request does not name the step, or has neutral values for it."""
        return not self._is_named(fields) or self._step.is_neutral(fields)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, M], in place
        """Apply the step to the rows of the requests that name it.

        Raises:
            RequestFailedError: The step returns something other than logits of these rows.
            RuntimeError: The requests of the rows are not known on the host.
        """
        if len(rows.host_fields) != len(logits):
            raise RuntimeError(
                f"{len(logits)} rows have {len(rows.host_fields)} host_fields: a step that "
                "requests name needs those of every row"
            )
        named = [row for row, fields in enumerate(rows.host_fields) if self._is_named(fields)]
        if len(named) == len(logits):
            return self._step.apply(logits, rows)
        index = upload(np.array(named, np.int64), logits.device)
        found = self._step.apply(logits[index], rows.select(named, index))
        check_returned(found, (len(named), logits.shape[1]), torch.float32, logits.device, "it")
        return logits.index_copy_(0, index, found)

    def initial_state(self, fields: Mapping[str, Any]) -> Sequence[float]:
        """Return the initial state of the step."""
        return self._step.initial_state(fields)

    def observe(self, logits: Tensor, rows: SampledRows, token_ids: Tensor) -> Tensor:
        """Return the state of the step after a token; called for rows that need it alone."""
        return self._step.observe(logits, rows, token_ids)

    def _is_named(self, fields: Mapping[str, Any]) -> bool:
        return NAMES not in fields or self._name in fields[NAMES]
