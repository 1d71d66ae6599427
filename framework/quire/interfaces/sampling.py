"""The interface of sampler steps: logits processors and samplers.

The sampling pipeline is any number of `LogitsProcessor`s, in the order of their declared stages,
and one `Sampler`. Each step declares at registration the request fields that it reads. Each field
has one device tensor with one value per slot, written when the slot is assigned. A row of logits
belongs to a (slot, position); speculation has several rows per slot. No step may synchronise with
the device. All randomness is a function of (seed, child, position, purpose), so a completion does
not depend on its batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from quire.errors import InvalidRequestError, PluginError
from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.field_types import (
    MAX_FLOAT32,
    FieldType,
    FieldVocabulary,
    TokenTexts,
    described,
    has_type,
    number_schema,
    shown,
)
from quire.interfaces.reference import check_reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Stage = Literal["penalty", "bias", "temperature", "filter", "sample"]
Kernels = Literal["triton", "native"]
MAX_POSITION = 2**31 - 1  # the host knows no bound
STAGES: tuple[Stage, ...] = ("penalty", "bias", "temperature", "filter", "sample")
KERNELS: tuple[Kernels | None, ...] = ("triton", "native", None)
RESERVED_NAMES = ("seed", "child")  # every request has these


@dataclass(frozen=True, slots=True)
class RequestField:
    """One typed field of a request that a sampler step reads.

    A field of `SamplingParams` is read from there; any other name is read from the request's
    `extra_args`, which over HTTP are further fields of the body.

    Attributes:
        name: Name of the field, an identifier.
        type: `float`, `int` or `bool`, or one of `quire.interfaces.field_types`: a choice, a text,
            a list, a map of token ids, a set of them, or texts that the host tokenizes.
        default: Value for requests that do not have the field, as a request gives it.
        minimum: Smallest value of a number.
        maximum: Largest value of a number.
        help: One sentence for users.
    """

    name: str
    type: type[float] | type[int] | type[bool] | FieldType
    default: Any
    minimum: float = -math.inf
    maximum: float = math.inf
    help: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise PluginError(f"a request field's name must be an identifier, got {self.name!r}")

    def check(self, value: Any) -> Any:
        """Return `value` converted to the field's type; token ids and texts are not resolved.

        Raises:
            InvalidRequestError: The value has another type or is out of range.
        """
        if isinstance(self.type, FieldType):
            return self.type.check(value, self.name)
        in_range = has_type(value, self.type) and self.minimum <= value <= self.maximum
        if not in_range or not self._fits_dtype(value):
            wanted = described(self.type, self.minimum, self.maximum)
            raise InvalidRequestError(
                f"{self.name} must be {wanted}, got {shown(value)}", param=self.name
            )
        return self.type(value)

    def resolve(self, value: Any, vocabulary: FieldVocabulary) -> Any:
        """Return a checked value as the steps get it: token ids exist, texts are tokenized.

        Raises:
            InvalidRequestError: The vocabulary does not have one of its tokens.
        """
        if isinstance(self.type, FieldType):
            return self.type.resolve(value, self.name, vocabulary)
        return value

    @property
    def worker_default(self) -> Any:
        """The default as steps get it where no host has resolved it: texts are left out."""
        if isinstance(self.type, TokenTexts):
            return [item for item in self.default if not isinstance(item, str)]
        return self.default

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the field's values, with default and description."""
        if isinstance(self.type, FieldType):
            schema = self.type.json_schema()
        else:
            schema = number_schema(self.type, self.minimum, self.maximum)
        schema["default"] = self.default
        return schema | ({"description": self.help} if self.help else {})

    def _fits_dtype(self, value: Any) -> bool:
        """Return whether the field's device tensor can hold a value: int64, or finite float32."""
        if self.type is int:
            return bool(-(2**63) <= value < 2**63)
        return bool(abs(value) <= MAX_FLOAT32) or self.type is bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCapabilities:
    """Capabilities of a sampler step, declared at registration.

    Attributes:
        stage: Stage of the pipeline; within a stage, steps run in the order of their names.
        fields: Request fields that the step reads.
        needs_kernels: Value that `--kernels` must resolve to for the step to be available:
            "triton", or "native" for C++ on a CPU; None: any.
        fuses: Names of the logits processors that a `Sampler` can run itself in `sample_fused`,
            all in one pass, in pipeline order. They declare `is_fusible`, and are quire's or come
            from the sampler's own distribution.
        is_fusible: Whether a `Sampler` that names the logits processor in `fuses` may run it
            instead of `apply`. It then depends on its fields, the tokens and the logits alone.
        probe: Import string of a function without arguments that prepares what the step runs, such
            as compiled kernels, and returns the reason why this machine cannot run it, or None. It
            runs before the choice is final, in a thread, and must not import torch.
        is_vocab_parallel: Whether the step also works on a shard of the vocabulary. `apply` of a
            `LogitsProcessor` then gives columns the values that they have in whole rows; a
            `Sampler` implements `sample_shard`, and `sample_shard_fused` if it declares `fuses`.
            With tensor parallelism, a batch whose active steps all do so is sampled without
            gathering its logits.
        reads_counts: Whether the step reads `SampledRows.counts_of`. The counts are kept only for
            batches in which such a step is active.
        is_opt_in: Whether a logits processor runs only for requests that name it in
            `logits_processors`. Its `apply` gets the rows of these requests alone, and it may be
            active whatever its fields are.
        states: Names of the float32 numbers that a `LogitsProcessor` carries from token to token of
            a request. It implements `initial_state` and `observe`, and reads each by its name as it
            reads a field. Such a step works on whole rows, and a batch in which it is active is not
            fused.
    """

    stage: Stage
    fields: tuple[RequestField, ...] = ()
    needs_kernels: Kernels | None = None
    fuses: tuple[str, ...] = ()
    probe: str | None = None
    is_vocab_parallel: bool = False
    reads_counts: bool = False
    is_opt_in: bool = False
    is_fusible: bool = False
    states: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_states()
        self._check_companion()
        if self.probe is not None:
            check_reference(self.probe, "a sampler's probe")
        if self.stage not in STAGES:
            raise PluginError(
                f"a sampler's stage must be one of {', '.join(STAGES)}, got {self.stage!r}"
            )
        if self.is_opt_in and self.stage == "sample":
            raise PluginError(
                "a sampler of stage 'sample' runs for every request: leave is_opt_in out, or "
                "choose another stage"
            )
        needs_more = self.is_opt_in or self.reads_counts or bool(self.states)
        if self.is_fusible and (self.stage == "sample" or needs_more):
            raise PluginError(
                "a sampler step that declares is_fusible must be a logits processor that runs by "
                "its fields alone: choose another stage than 'sample', and leave out is_opt_in, "
                "reads_counts and states"
            )
        if self.needs_kernels not in KERNELS:
            raise PluginError(
                "a sampler's needs_kernels must be 'triton', 'native' or None, got "
                f"{self.needs_kernels!r}"
            )

    def _check_companion(self) -> None:
        switches = {field.name for field in self.fields if not isinstance(field.type, FieldType)}
        for field in self.fields:
            if isinstance(field.type, CompanionPrompt) and field.type.switch not in switches:
                raise PluginError(
                    f"the request field {field.name!r} holds the prompt of a companion, and its "
                    f"switch {field.type.switch!r} is no number among the fields of the step"
                )
            if isinstance(field.type, CompanionPrompt) and (self.is_opt_in or self.is_fusible):
                raise PluginError(
                    f"the request field {field.name!r} holds the prompt of a companion, so the "
                    "step needs the rows of the whole batch: leave out is_opt_in and is_fusible"
                )

    def _check_states(self) -> None:
        taken = [*RESERVED_NAMES, *(field.name for field in self.fields)]
        for name in self.states:
            if not name.isidentifier() or name in taken:
                raise PluginError(
                    "a sampler step's state must have an identifier as its name that is no field "
                    f"or other state of the step, got {name!r}"
                )
            taken.append(name)
        if self.states and (self.stage == "sample" or self.is_vocab_parallel):
            raise PluginError(
                f"a sampler step with the state {self.states[0]!r} must be a logits processor that "
                "works on whole rows: choose a stage other than 'sample', and leave "
                "is_vocab_parallel out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """The rows of logits that are sampled together.

    Attributes:
        slots: `[N]` int64, slot of each row.
        positions: `[N]` int64, position of the token that is sampled from each row.
        slot_fields: Field name -> `[max_num_seqs]` device tensor, indexed by slot. It also has
            `seed` and `child`. A field that is more than a number has the columns of its type,
            `[max_num_seqs, ...]`, by its name and a suffix; see `quire.interfaces.field_types`.
            The states that steps carry are there by their names, float32. No step writes to them.
        token_ids: `[max_num_seqs, max_model_len]` int32, known tokens of each slot. For a row they
            end before its position; entries from there on are stale.
        num_prompt_tokens: `[max_num_seqs]` int64.
        all_greedy: Whether every row is known to be neutral to the sampler.
        host_fields: Request fields of each row on the host, to choose a faster path without a
            device synchronisation. If empty, they are not known, and the chosen path must be right
            for all values.
        first_token_id: Token id of the first column of the logits: 0, except for a shard of the
            vocabulary, which only steps that declare `is_vocab_parallel` get.
        max_position: Upper bound of `positions` that the host knows.
        output_counts: `[max_num_seqs, V]` int32, counts of the sampled tokens of each slot, for
            `counts_of`; None if no active step declares `reads_counts`.
        num_counted: `[max_num_seqs]` int64, number of tokens after which the counts of a slot end.
        max_uncounted: Upper bound of the tokens between `num_counted` and a row's position; above 0
            with several rows per slot.
        guided: `[G]` int64, rows that have a companion; None: no row has one. See
            `CompanionPrompt`.
        companions: `[G]` int64, row that has the logits after the other prompt of each of them.
    """

    slots: Tensor
    positions: Tensor
    slot_fields: Mapping[str, Tensor]
    token_ids: Tensor
    num_prompt_tokens: Tensor
    all_greedy: bool = False
    host_fields: Sequence[Mapping[str, Any]] = ()
    first_token_id: int = 0
    max_position: int = MAX_POSITION
    output_counts: Tensor | None = None
    num_counted: Tensor | None = None
    max_uncounted: int = 0
    guided: Tensor | None = None
    companions: Tensor | None = None

    def field(self, name: str) -> Tensor:
        """Return the value of a field or a state for each row: `[N, 1]`, of a choice its index."""
        values = self.slot_fields[name][self.slots]
        return values.view(len(self.slots), 1)

    def column(self, name: str) -> Tensor:
        """Return a column of a field that is more than a number for each row: `[N, ...]`.

        The name is that of the field with a suffix: "breakers", "breakers.count".
        """
        return self.slot_fields[name][self.slots]

    def is_item(self, name: str) -> Tensor:  # [N, items]
        """Return which items of a list, a map or texts exist; the others are left from earlier."""
        count = self.column(f"{name}.count")
        return self._indexes(0, self.slot_fields[name].shape[1]) < count

    @property
    def num_known(self) -> int:
        """Largest number of known tokens of a row, as far as the host knows; for `known_tokens`."""
        return min(self.max_position, self.token_ids.shape[1])

    def known_tokens(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return tokens of each row, `[N, L]` int64, and which of them are known, `[N, L]` bool.

        They are those at the positions from `start` to `stop - 1`; those at a row's position and
        after it are not known, and returned as 0. A step that needs all takes `num_known` in
        chunks: a batch of many rows with one long request must not need memory for a table.
        """
        token_ids = self.token_ids[:, start:stop][self.slots].long()
        is_known = self._indexes(start, token_ids.shape[1]) < self.positions[:, None]
        return token_ids * is_known, is_known

    def select(self, rows: Sequence[int], index: Tensor) -> SampledRows:
        """Return some of the rows, without their companions.

        Args:
            rows: Indexes of the rows.
            index: The same on the device, `[M]` int64.
        """
        return replace(
            self,
            slots=self.slots[index],
            positions=self.positions[index],
            host_fields=[self.host_fields[row] for row in rows] if self.host_fields else (),
            guided=None,
            companions=None,
        )

    def _indexes(self, start: int, length: int) -> Tensor:  # [length] int64
        """Return consecutive integers on the device of the rows."""
        return self.positions.new_ones(length).cumsum(0) + (start - 1)

    def counts_of(self, token_ids: Tensor) -> Tensor:  # [N, L] int64, both
        """Return how often each row has sampled these tokens; the prompt does not count.

        For steps that declare `reads_counts`; for others, and in profiling, all are 0.
        """
        if self.output_counts is None or self.num_counted is None:
            return token_ids.new_zeros(token_ids.shape)
        slots = self.slots[:, None]
        counts = self.output_counts[slots, token_ids].long()
        last = self.token_ids.shape[1] - 1
        for offset in range(self.max_uncounted):
            position = self.num_counted[slots] + offset  # [N, 1]
            is_sampled = position < self.positions[:, None]
            is_sampled &= position >= self.num_prompt_tokens[slots]
            later = self.token_ids[slots, position.clamp(max=last)]
            counts += (token_ids == later) & is_sampled
        return counts


class SamplerStep(ABC):
    """One step of the sampling pipeline of one worker.

    Args:
        vocab_size: V.
        device: Device of the logits.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device

    @abstractmethod
    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the step leaves logits unchanged for a request with these values.

        Called on the host once per request. Of a request that is neutral to the sampler, only steps
        that may change the most likely token are asked. A step is skipped if all rows of a batch
        are neutral to it.
        """


class LogitsProcessor(SamplerStep):
    """A sampler step that changes logits."""

    @abstractmethod
    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] float32, both
        """Return the changed logits; `logits` may be written in place.

        Rows with neutral fields must be returned unchanged. Masked tokens (-inf) must stay masked,
        and at least one other token must stay finite. A step that declares `is_vocab_parallel` may
        get fewer than V columns, those of the tokens from `rows.first_token_id` on.
        """

    def initial_state(self, fields: Mapping[str, Any]) -> Sequence[float]:
        """Return the values of the declared `states` before the first token, in their order.

        Called on the host once per request that needs the step.

        Raises:
            NotImplementedError: The step declares no `states`.
        """
        raise NotImplementedError(f"{type(self).__name__} carries no state")

    def observe(self, logits: Tensor, rows: SampledRows, token_ids: Tensor) -> Tensor:
        """Return the values of the declared `states` after a token: `[N, len(states)]` float32.

        Called after the sampler, for the rows of requests that need the step. It writes nothing:
        the values are stored once the whole step has succeeded. A value that is not finite fails
        its request.

        Args:
            logits: The logits that the tokens were sampled from, `[N, V]` float32.
            rows: The same rows as in `apply`, with the state before the token.
            token_ids: Sampled tokens, `[N]` int64.

        Raises:
            NotImplementedError: The step declares no `states`.
        """
        raise NotImplementedError(f"{type(self).__name__} carries no state")


class Sampler(SamplerStep):
    """The last step, which samples one token per row. Rows are neutral if they are greedy."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the request is greedy: by default, whether its `temperature` is 0."""
        return bool(fields["temperature"] == 0)

    @abstractmethod
    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] float32 -> [N] int64
        """Return a token id for each row, the argmax for neutral rows; `logits` is not changed."""

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:
        """Run the fused steps and sample: `[N, V] float32 -> [N] int64`. `logits` is not changed.

        It may be captured as a CUDA graph. Then `rows` are fixed buffers, padding rows have the
        padding slot, and `host_fields` is empty. For a row with NaN logits, return the id of a
        token whose logit is NaN.

        Raises:
            NotImplementedError: The step declares no `fuses`.
        """
        raise NotImplementedError(f"{type(self).__name__} fuses no steps")

    def sample_shard(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Return the largest score of each row in a shard of the vocabulary, and its token id.

        The columns of `logits`, float32 `[N, M]`, are the tokens from `rows.first_token_id` on. A
        score is the value by which the sampler chooses a token: the logit in a neutral row, the
        logit plus noise for the token's id in others. Of the results of all shards, the one with
        the largest score is sampled, and of equal ones the one with the lowest id. It must be the
        token that `sample` returns for whole rows. A NaN logit has a score of NaN or infinity.

        Returns:
            Scores, `[N]` float32, and ids in the whole vocabulary, `[N]` int64.

        Raises:
            NotImplementedError: The step does not declare `is_vocab_parallel`.
        """
        raise NotImplementedError(f"{type(self).__name__} samples from whole rows only")

    def sample_shard_fused(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Run the fused steps, and return what `sample_shard` returns; `logits` is not changed.

        Fused steps that do not declare `is_vocab_parallel` are neutral for all rows. As with
        `sample_fused`, it may be captured as a CUDA graph.

        Raises:
            NotImplementedError: The step does not declare `is_vocab_parallel`, or no `fuses`.
        """
        raise NotImplementedError(f"{type(self).__name__} samples from whole rows only")
