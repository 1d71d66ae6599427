"""Draw tokens: run the composed pipeline over the rows of a step.

A step of the pipeline runs only when a row of the batch needs it. Masks of grammars and of
`min_tokens` come first; log probabilities are those of the model, before any step.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.errors import RequestFailedError
from quire.interfaces.sampling import DrawStep, LogitsStep, SampledRows, Stage
from quire.messages import RowBitmask, TokenLogprobs
from quire.worker.logprobs import RowLogprobs, row_logprobs
from quire.worker.slots import SlotTables

KEEP_ORDER: tuple[Stage, ...] = ("temperature", "filter")


@dataclass(slots=True)
class Drawn:
    """The tokens of some rows, on the device; reading them waits for it.

    Attributes:
        token_ids: `[N]` int64.
        best: `[N]`, the largest allowed logit; not finite where no token could be drawn.
        logprobs: If a row asked for them.
    """

    token_ids: Tensor
    best: Tensor
    logprobs: RowLogprobs | None

    def read_logprobs(self) -> list[TokenLogprobs | None]:
        """Bring log probabilities to the host, for the rows that asked."""
        if self.logprobs is None:
            return [None] * len(self.token_ids)
        return self.logprobs.read()


class SamplingPipeline:
    """Logits steps in order, and the step that draws.

    Args:
        steps: The steps before the draw, each with its stage.
        draw: The last step.
        tables: Where the slots' columns lie.
        owners: What an error calls each step, the last one included, and its plugin.
    """

    def __init__(
        self,
        steps: Sequence[tuple[Stage, LogitsStep]],
        draw: DrawStep,
        tables: SlotTables,
        owners: Sequence[str],
    ) -> None:
        self.steps = [step for _, step in steps]
        self.draw = draw
        self.tables = tables
        self._owners = owners
        self._draw_bit = 1 << len(steps)
        every = sum(1 << index for index in range(len(steps)))
        keeping_order = sum(1 << i for i, (stage, _) in enumerate(steps) if stage in KEEP_ORDER)
        self._matters_to_greedy = every & ~keeping_order

    def active_steps(self, fields: Mapping[str, Any]) -> int:
        """Return the bits of the steps that a request with these fields needs.

        The likeliest token stays the likeliest through temperature and filters, so a greedy
        request needs none of them.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        active = index = 0
        try:
            for index, step in enumerate((*self.steps, self.draw)):
                active |= 0 if step.is_neutral(fields) else 1 << index
        except Exception as error:
            raise self._blame(index, error) from error
        is_greedy = not active & self._draw_bit
        return active & self._matters_to_greedy if is_greedy else active

    @torch.inference_mode()
    def run(
        self,
        logits: Tensor,  # [N, V] float32; written in place
        slots: Sequence[int],
        slot_index: Tensor,  # [N] int64, the same on the device
        masks: Sequence[RowBitmask],
    ) -> Drawn:
        """Draw one token a row.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        infos = [self.tables.info_of(slot) for slot in slots]
        wanted = [info.num_logprobs for info in infos]
        raw = logits.clone() if any(count is not None for count in wanted) else None
        if any(info.min_tokens for info in infos):
            self._mask_stops(logits, slots, {mask.slot for mask in masks})
        self._mask_grammars(logits, slots, masks)
        active = 0
        for info in infos:
            active |= info.active_steps
        rows = SampledRows(
            slots=slot_index,
            positions=torch.from_numpy(self.tables.num_known[np.asarray(slots)]).to(logits.device),
            columns=self.tables.columns,
            token_ids=self.tables.token_ids,
            num_prompt_tokens=self.tables.num_prompt_tokens,
            all_greedy=not active & self._draw_bit,
            host_fields=[info.fields for info in infos],
        )
        best = None if rows.all_greedy else logits.amax(-1)  # [N]; not a number if any is not
        index = 0
        try:
            for index, step in enumerate(self.steps):
                if active >> index & 1:
                    logits = step.apply(logits, rows)
            index = len(self.steps)
            token_ids = self.draw.draw(logits, rows)
        except Exception as error:
            raise self._blame(index, error) from error
        if best is None:  # the chosen one is the best: no second look at every logit
            best = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        logprobs = None if raw is None else row_logprobs(raw, token_ids, wanted)
        return Drawn(token_ids, best, logprobs)

    def _blame(self, index: int, error: Exception) -> RequestFailedError:
        """Say whose step it was that failed."""
        return RequestFailedError(f"{self._owners[index]} failed: {type(error).__name__}")

    def _mask_grammars(
        self, logits: Tensor, slots: Sequence[int], masks: Sequence[RowBitmask]
    ) -> None:
        if not masks:
            return
        row_of = {slot: row for row, slot in enumerate(slots)}
        masks = [mask for mask in masks if mask.slot in row_of]
        words = np.frombuffer(b"".join(mask.words for mask in masks), np.uint8)
        bits = np.unpackbits(words.reshape(len(masks), -1), axis=1, bitorder="little")
        allowed = torch.from_numpy(bits[:, : logits.shape[1]]).bool().to(logits.device)
        rows = torch.tensor([row_of[mask.slot] for mask in masks], device=logits.device)
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)

    def _mask_stops(self, logits: Tensor, slots: Sequence[int], bound: Set[int]) -> None:
        """Keep answers that are shorter than `min_tokens` from ending; a grammar comes first."""
        for row, slot in enumerate(slots):
            info = self.tables.info_of(slot)
            if not info.min_tokens or slot in bound:
                continue
            num_generated = self.tables.num_known[slot] - info.num_prompt_tokens
            if num_generated < info.min_tokens and info.stop_token_ids:
                logits[row, list(info.stop_token_ids)] = -torch.inf
