"""The interface of samplers: steps in the pipeline from logits to a token.

A pipeline is any number of `LogitsProcessor`s, in the order of their declared stage, and one
`Sampler`. Each step declares at registration the request fields that it reads. A field has one
device tensor with a value per slot, written when the slot is assigned. A row of logits is (slot,
position); speculation has several rows a slot. No step may synchronise with the device, and all
randomness is a function of (seed, child, position, purpose), so a completion does not depend on its
batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from quire.errors import InvalidRequestError, PluginError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Stage = Literal["penalty", "bias", "temperature", "filter", "sample"]
Kernels = Literal["triton", "native"]
MAX_FLOAT32 = 3.4028234e38
STAGES: tuple[Stage, ...] = ("penalty", "bias", "temperature", "filter", "sample")
KERNELS: tuple[Kernels | None, ...] = ("triton", "native", None)


@dataclass(frozen=True, slots=True)
class RequestField:
    """One typed field of a request that a sampler step reads.

    A name that `SamplingParams` has is read from there; any other is taken from the request's
    `extra_args`, which over HTTP are simply further fields of the body.
    """

    name: str
    type: type[float] | type[int] | type[bool]
    default: float | int | bool
    minimum: float = -math.inf
    maximum: float = math.inf
    help: str = ""

    def check(self, value: Any) -> float | int | bool:
        """Return `value` as the field's type.

        Raises:
            InvalidRequestError: It has another type or is out of range.
        """
        is_bool = isinstance(value, bool)
        fits = {bool: is_bool, int: isinstance(value, int) and not is_bool}.get(
            self.type, isinstance(value, int | float) and not is_bool
        )
        if not fits or not self.minimum <= value <= self.maximum or not self._has_room(value):
            low, high = self.minimum, self.maximum
            bounds = f" from {low:g} to {high:g}" if low > -math.inf else ""
            raise InvalidRequestError(
                f"{self.name} must be a {self.type.__name__}{bounds}, got {value!r}",
                param=self.name,
            )
        return self.type(value)

    def _has_room(self, value: Any) -> bool:
        """Whether the field's device column can hold a value: int64, or finite float32."""
        if self.type is int:
            return bool(-(2**63) <= value < 2**63)
        return bool(abs(value) <= MAX_FLOAT32) or self.type is bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCapabilities:
    """What a step declares at registration.

    Attributes:
        stage: Where in the pipeline it stands; within a stage, steps run by name.
        fields: The request fields that it reads.
        needs_kernels: It serves only where `--kernels` comes out as this: "triton", or "native",
            which means C++ on a CPU.
        fuses: For a draw: names of steps of quire's own that it can do itself, in the order of
            the pipeline, all of them in one go.
    """

    stage: Stage
    fields: tuple[RequestField, ...] = ()
    needs_kernels: Kernels | None = None
    fuses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise PluginError(
                f"a sampler's stage must be one of {', '.join(STAGES)}, got {self.stage!r}"
            )
        if self.needs_kernels not in KERNELS:
            raise PluginError(
                "a sampler's needs_kernels must be 'triton', 'native' or None, got "
                f"{self.needs_kernels!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """The rows of one draw.

    Attributes:
        slots: `[N]` int64, the slot of each row.
        positions: `[N]` int64, the position that the drawn token will take.
        columns: Field name -> `[max_num_seqs]` device column, indexed by slot; also `seed` and
            `child`.
        token_ids: `[max_num_seqs, max_model_len]` int32, the known tokens of each slot. For a row
            they end before its position; what stands there and behind is stale.
        num_prompt_tokens: `[max_num_seqs]` int64.
        all_greedy: Whether the host knows that every row is neutral to the draw.
        host_fields: The request's fields for each row, as the host knows them, to choose a quicker
            way without asking the device; empty where it is not known, and then the way must do
            for all values.
    """

    slots: Tensor
    positions: Tensor
    columns: Mapping[str, Tensor]
    token_ids: Tensor
    num_prompt_tokens: Tensor
    all_greedy: bool = False
    host_fields: Sequence[Mapping[str, Any]] = ()

    def field(self, name: str) -> Tensor:
        """Return the field's value for each row, `[N, 1]`."""
        return self.columns[name][self.slots].unsqueeze(1)


class SamplerStep(ABC):
    """One step of the pipeline, for one worker.

    Args:
        vocab_size: V.
        device: Where logits lie.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device

    @classmethod  # noqa: B027 (most have nothing to start)
    def begin_loading(cls) -> None:
        """Start what goes on beside the loading of weights, such as to compile kernels.

        Called once in a worker, before it builds the step.
        """

    @classmethod  # noqa: B027
    def end_loading(cls) -> None:
        """Wait for what `begin_loading` started; called once the weights are loaded.

        Raises:
            NativeUnavailableError: It cannot be had; a step that needs none takes its place.
        """

    @abstractmethod
    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Whether a request with these values leaves the logits as they are.

        Asked on the host once a request; a step in which all rows are neutral is left out.
        """


class LogitsProcessor(SamplerStep):
    """A step that changes logits."""

    @abstractmethod
    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] float32, both
        """Return the changed logits; `logits` may be written in place.

        Rows whose fields are neutral must come out unchanged. Masked tokens (minus infinity) stay
        masked, and of the others one stays finite.
        """


class Sampler(SamplerStep):
    """The last step: one token a row. A row is neutral if it takes the most likely token."""

    @abstractmethod
    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] float32 -> [N] int64
        """Return a token id for each row; the argmax for rows that are neutral."""

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:
        """Do the absorbed steps and draw, `[N, V] float32 -> [N] int64`; logits stay as they are.

        It may be captured as a CUDA graph: then `rows` are fixed buffers, rows of padding have the
        spare slot, and `host_fields` is empty. A row that holds what is not a number gives the
        token of such a logit.

        Raises:
            NotImplementedError: The step declares no `fuses`.
        """
        raise NotImplementedError(f"{type(self).__name__} absorbs no steps")
