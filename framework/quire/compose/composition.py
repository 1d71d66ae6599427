"""Composition of an engine: the chosen parts, with reasons for them and against alternatives.

`quire explain` prints it, the start-up log reports it, and processes of one engine compare it.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quire.compose.checkpoint import Checkpoint
from quire.interfaces.executor import WorkerGrid
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import ModelDescription
from quire.interfaces.sampling import RequestField
from quire.interfaces.weight_codes import WeightCodes
from quire.machine.machine import NATIVE_DTYPE, Machine
from quire.plugins.registry import Entry

T = TypeVar("T")
NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A part that was not chosen."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """A chosen value, with the reason for it and the alternatives that were rejected."""

    value: T
    reason: str
    rejected: tuple[Rejection, ...] = ()

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Choice:
    """One chosen part of the engine.

    Attributes:
        role: Role in the engine, for people: "attention backend", "sampler 2 of 4".
        entry: Registry entry of the part.
        reason: Reason for this choice.
        rejected: Alternatives that were not chosen, with reasons.
    """

    role: str
    entry: Entry
    reason: str
    rejected: tuple[Rejection, ...] = ()

    @property
    def name(self) -> str:
        """The name in the registry."""
        return self.entry.name

    @property
    def others(self) -> tuple[Rejection, ...]:
        """Alternatives: other names, and the same name of other plugins."""
        passed_over = (
            Rejection(
                f"{self.name} of {source}",
                f"quire's own is used; {self.entry.preference(source)} would use it",
            )
            for source in self.entry.passed_over
        )
        return (*self.rejected, *passed_over)

    def __str__(self) -> str:
        return f"{self.entry.kind.title} {self.name!r} of plugin {self.entry.source}"

    def as_dict(self) -> dict[str, Any]:
        """The choice as JSON data."""
        source = self.entry.source
        return {
            "role": self.role,
            "kind": self.entry.kind.name,
            "name": self.name,
            "plugin": source.plugin,
            "distribution": source.distribution,
            "version": source.version,
            "api": self.entry.api,
            "reference": self.entry.reference,
            "why": self.reason,
            "rejected": [{"name": r.name, "reason": r.reason} for r in self.others],
        }


def hidden_dtype(dtype: str, kernels: str) -> str:
    """Return the dtype of hidden states, in which layers pass tensors to each other.

    Native kernels compute on float32 tensors in every compute dtype: linear layers round the inputs
    of their products.

    Args:
        dtype: Compute dtype.
        kernels: Kernels of layers.
    """
    return NATIVE_DTYPE if kernels == NATIVE else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """All choices for an engine, made before anything is loaded.

    Attributes:
        machine: Machine that the parts were chosen for; without native kernels if they are
            disabled or cannot run.
        dtype: Compute dtype: that of the inputs of matrix products, and of the KV cache unless the
            user sets another one.
        kv_dtype: Dtype of the KV cache.
        kernels: Kernels of layers and sampling: "torch", "triton" or "native".
        prepared_quantization: Method that reads the checkpoint's quantized weights; None: they are
            not quantized.
        checkpoint_codes: Codes of the checkpoint's quantized weights, for each group of layers;
            None: they are not quantized, or the method does not describe them.
        quantization: Quantization method of linear layers; None: weights in the dtype of hidden
            states.
        attention_backends: Distinct backends, the one of most layers first; empty if no layer has
            KV.
        layer_backends: Index in `attention_backends` for each of `description.kv_layers`.
        cuda_graphs: Number of requests of the largest CUDA graph; 0: no graphs.
        cpu_graphs: Whether decode steps on a CPU are traced and replayed.
        symmetric_memory: Whether ranks that share a layer try to use symmetric memory.
        grid: Number of workers, and how the model is sharded over them.
        stage_layers: Decoder layers of each pipeline stage, in order.
        unavailable: Parts that would have been chosen but cannot run on this machine, with the
            whole reasons.
        shipped_lora_source: Source of the adapters that come with the checkpoint; None if there
            are none, or if `lora_source` reads them.
    """

    quire_version: str
    checkpoint: Checkpoint
    description: ModelDescription
    machine: Machine
    device: str
    dtype: Decision[str]
    kv_dtype: str
    kernels: Decision[str]
    max_model_len: int
    block_size: int
    model: Choice
    prepared_quantization: Choice | None
    quantization: Decision[Choice | None]
    attention_backends: tuple[Choice, ...]
    layer_backends: tuple[int, ...]
    cuda_graphs: Decision[int]
    cpu_graphs: Decision[bool]
    symmetric_memory: Decision[bool]
    kv_cache_specs: tuple[Choice, ...]
    samplers: tuple[Choice, ...]
    structured_output: tuple[Choice, ...]
    tool_parser: Choice | None
    reasoning_parser: Choice | None
    lora_source: Choice | None
    shipped_lora_source: Choice | None
    scheduling_policy: Choice
    kv_store: Choice | None
    executor: Choice
    grid: WorkerGrid
    stage_layers: tuple[range, ...]
    unavailable: tuple[Rejection, ...] = ()
    checkpoint_codes: tuple[WeightCodes, ...] | None = None

    @property
    def passed_over(self) -> list[Entry]:
        """Chosen entries with a name that other plugins offer as well, without a preference."""
        shipped = [] if self.shipped_checkpoint is None else [self.shipped_checkpoint]
        entries = [choice.entry for choice in (*self.choices, *shipped)]
        return [entry for entry in entries if entry.passed_over]

    @property
    def shipped_checkpoint(self) -> Choice | None:
        """The checkpoint if a plugin ships it; it is not among `choices`."""
        entry = self.checkpoint.entry
        return None if entry is None else Choice(entry.kind.title, entry, "the model's name")

    @property
    def hidden_dtype(self) -> str:
        """The dtype of hidden states."""
        return hidden_dtype(self.dtype.value, self.kernels.value)

    @property
    def rounds_inputs(self) -> bool:
        """Whether linear layers round the inputs of their products to the compute dtype."""
        method, dtype = self.quantization.value, self.dtype.value
        if method is None or dtype == self.hidden_dtype:
            return False
        return dtype in method.entry.capabilities.product_dtypes

    @property
    def rounds_weights(self) -> bool:
        """Whether the compute dtype rounds the weights too: wider ones, or dequantized ones."""
        is_wider = self.dtype.value != self.description.checkpoint_dtype
        return self.rounds_inputs and (is_wider or self.prepared_quantization is not None)

    @property
    def weights(self) -> str:
        """Storage of the weights of linear layers and the reason for it, for people."""
        method = self.quantization.value
        name = self.hidden_dtype if method is None else method.name
        rounds = f"; products with {self.dtype.value} inputs" if self.rounds_inputs else ""
        return f"{name} ({self.quantization.reason}{rounds})"

    @property
    def deprecation(self) -> str | None:
        """A warning that the quantization method will be removed, with what to use instead."""
        method = self.quantization.value
        if method is None or method.entry.capabilities.deprecated is None:
            return None
        return (
            f"quantization method {method.name!r} is deprecated and will be removed: "
            f"{method.entry.capabilities.deprecated}"
        )

    @property
    def decode_steps(self) -> str:
        """Execution of decode steps on a CPU, for people."""
        if self.cpu_graphs.value:
            return "replayed from CPU graphs"
        return f"without CPU graphs ({self.cpu_graphs.reason})"

    @property
    def all_reduce(self) -> str:
        """Addition of partial sums over tensor-parallel ranks, for people."""
        if self.device != "cuda":
            return "shared memory on one machine, Gloo between machines"
        if not self.symmetric_memory.value:
            return f"NCCL ({self.symmetric_memory.reason})"
        return f"symmetric memory {self.symmetric_memory.reason}"

    @property
    def workers(self) -> str:
        """Number of workers and the layers of each pipeline stage, for people."""
        stages = ", ".join(f"{layers.start}-{layers.stop - 1}" for layers in self.stage_layers)
        return (
            f"{self.grid.size} (tensor_parallel_size {self.grid.tp_size}, pipeline_parallel_size "
            f"{self.grid.pp_size}: layers {stages})"
        )

    @property
    def choices(self) -> list[Choice]:
        """All parts, in the order in which `quire explain` lists them."""
        optional = (
            *self.structured_output, self.tool_parser, self.reasoning_parser, self.lora_source,
            self.shipped_lora_source, self.scheduling_policy, self.kv_store, self.executor,
        )  # fmt: skip
        parts = (
            self.model, self.prepared_quantization, self.quantization.value,
            *self.attention_backends, *self.kv_cache_specs, *self.samplers, *optional,
        )  # fmt: skip
        return [part for part in parts if part is not None]

    def attention_backend_of(self, layer: KVLayer) -> Choice:
        """Return the attention backend of one of the model's layers."""
        names = [known.name for known in self.description.kv_layers]
        return self.attention_backends[self.layer_backends[names.index(layer.name)]]

    @property
    def sampler_fields(self) -> list[RequestField]:
        """Distinct request fields that the samplers read."""
        every = [field for part in self.samplers for field in part.entry.capabilities.fields]
        return list({field.name: field for field in every}.values())

    @property
    def sampler_states(self) -> list[str]:
        """Names of the states that samplers carry from token to token."""
        return [name for part in self.samplers for name in part.entry.capabilities.states]

    def fingerprint(self) -> list[tuple[str, str, str, str]]:
        """Return what the processes of an engine compare: the same four words on each line.

        They are (kind, name, distribution, version) of each part, then the kernels and dtypes, and
        the grid with the layers of each pipeline stage.
        """
        stages = ",".join(str(len(layers)) for layers in self.stage_layers)
        return [
            *(
                (c.entry.kind.name, c.name, c.entry.source.distribution, c.entry.source.version)
                for c in self.choices
            ),
            ("computing", self.kernels.value, self.dtype.value, f"{self.kv_dtype} KV cache"),
            ("workers", f"tp {self.grid.tp_size}", f"pp {self.grid.pp_size}", f"layers {stages}"),
        ]
