"""Draw tokens: run the composed pipeline over the rows of a step.

A step of the pipeline runs only when a row of the batch needs it. Masks of grammars and of
`min_tokens` come first; log probabilities are those of the model, before any step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.interfaces.sampling import DrawStep, LogitsStep, SampledRows, Stage
from quire.messages import RowBitmask, TokenLogprobs
from quire.worker.slots import SlotTables

MIN_LOGPROB = -9999.0  # JSON has no minus infinity
KEEP_ORDER: tuple[Stage, ...] = ("temperature", "filter")


@dataclass(slots=True)
class Drawn:
    """The tokens of some rows.

    Attributes:
        token_ids: `[N]` int64, on the device.
        is_sound: Whether the row's logits were numbers.
        logprobs: For the rows that asked for them.
    """

    token_ids: Tensor
    is_sound: list[bool]
    logprobs: list[TokenLogprobs | None]


class SamplingPipeline:
    """Logits steps in order, and the step that draws.

    Args:
        steps: The steps before the draw, each with its stage.
        draw: The last step.
        tables: Where the slots' columns lie.
    """

    def __init__(
        self, steps: Sequence[tuple[Stage, LogitsStep]], draw: DrawStep, tables: SlotTables
    ) -> None:
        self.steps = [step for _, step in steps]
        self.draw = draw
        self.tables = tables
        self._draw_bit = 1 << len(steps)
        every = sum(1 << index for index in range(len(steps)))
        keeping_order = sum(1 << i for i, (stage, _) in enumerate(steps) if stage in KEEP_ORDER)
        self._matters_to_greedy = every & ~keeping_order

    def active_steps(self, fields: Mapping[str, Any]) -> int:
        """Return the bits of the steps that a request with these fields needs.

        The likeliest token stays the likeliest through temperature and filters, so a greedy
        request needs none of them.
        """
        steps = enumerate(self.steps)
        active = sum(1 << i for i, step in steps if not step.is_neutral(fields))
        is_greedy = self.draw.is_neutral(fields)
        return active & self._matters_to_greedy if is_greedy else active | self._draw_bit

    @torch.inference_mode()
    def run(
        self,
        logits: Tensor,  # [N, V] float32; written in place
        slots: Sequence[int],
        slot_index: Tensor,  # [N] int64, the same on the device
        masks: Sequence[RowBitmask],
    ) -> Drawn:
        """Draw one token a row."""
        infos = [self.tables.info_of(slot) for slot in slots]
        wanted = [info.num_logprobs for info in infos]
        raw = logits.clone() if any(count is not None for count in wanted) else None
        self._mask_grammars(logits, slots, masks)
        self._mask_stops(logits, slots)
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
        for index, step in enumerate(self.steps):
            if active >> index & 1:
                logits = step.apply(logits, rows)
        token_ids = self.draw.draw(logits, rows)
        if best is None:  # the chosen one is the best: no second look at every logit
            best = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        logprobs: list[TokenLogprobs | None] = [None] * len(slots)
        if raw is not None:
            logprobs = _logprobs(raw, token_ids, wanted)
        return Drawn(token_ids, torch.isfinite(best).tolist(), logprobs)

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

    def _mask_stops(self, logits: Tensor, slots: Sequence[int]) -> None:
        """Keep answers that are shorter than `min_tokens` from ending."""
        for row, slot in enumerate(slots):
            info = self.tables.info_of(slot)
            num_generated = self.tables.num_known[slot] - info.num_prompt_tokens
            if num_generated < info.min_tokens and info.stop_token_ids:
                logits[row, list(info.stop_token_ids)] = -torch.inf


def _logprobs(
    logits: Tensor,  # [N, V]
    token_ids: Tensor,  # [N]
    wanted: Sequence[int | None],
) -> list[TokenLogprobs | None]:
    most = max(count for count in wanted if count is not None)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))  # [N, 1]
    ranks = ((logprobs > chosen).sum(1) + 1).tolist()
    top_values, top_ids = (
        logprobs.topk(most) if most else (chosen[:, :0], token_ids[:, None][:, :0])
    )
    ids = torch.cat((token_ids.unsqueeze(1), top_ids), 1).tolist()
    values = torch.cat((chosen, top_values), 1).clamp_min(MIN_LOGPROB).tolist()
    return [
        None
        if count is None
        else TokenLogprobs(ids[i][: count + 1], values[i][: count + 1], ranks[i])
        for i, count in enumerate(wanted)
    ]
