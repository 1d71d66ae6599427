"""What the user may choose: one tree of frozen settings, one dataclass a subject.

Each option is written once, here. The command line, YAML files, environment variables,
`LLM(...)` and the docs are views of these fields: the option `max_num_seqs` is `--max-num-seqs`,
`max-num-seqs:` in a file, `QUIRE_MAX_NUM_SEQS`, and `LLM(max_num_seqs=...)`. A default of None
means that the model or the machine decides; `compose` does, and says what it chose.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from quire.errors import SettingsError
from quire.machine.byte_size import parse_byte_size

T = TypeVar("T")

ENVIRONMENT_PREFIX = "QUIRE_"
TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

TYPE_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}

DEFAULT_MODEL = "demo"
DEFAULT_STRUCTURED_OUTPUT = "outlines"
DEFAULT_LORA_SOURCE = "peft"
DEFAULT_EXECUTOR = "in_process"
DEFAULT_SCHEDULING_POLICY = "fcfs"
DEFAULT_LOGITS_PROCESSORS = ("temperature", "top_k_top_p", "min_p")
DEFAULT_SAMPLERS = {
    "torch": "categorical",
    "triton": "gumbel",
    "native": "cpu_gumbel",
}  # by what samplers run
STEP_SIZES = {  # a GPU reads its weights for 256 requests in little more time than for one
    "cpu": {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    "cuda": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
}
LOAD_FORMATS = ("auto", "safetensors", "dummy")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = {
    **{name: name for name in (*DTYPES, "float8_e4m3fn", "int8")},
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
}
KERNELS = ("auto", "torch", "triton", "native")


def option(
    default: T,
    help_text: str,
    *,
    flag: str | None = None,
    is_repeated: bool = False,
    is_bytes: bool = False,
    is_pairs: bool = False,
) -> T:
    """Declare a field together with its help text.

    Args:
        default: None where the model or the machine decides.
        help_text: One sentence for the command line and the docs.
        flag: A short flag, if it has one.
        is_repeated: A list whose flag takes one value and is given several times.
        is_bytes: A number of bytes, that may be written with a unit.
        is_pairs: A list of KEY=VALUE, that may be written as a mapping.
    """
    metadata = {
        "help": help_text,
        "flag": flag,
        "is_repeated": is_repeated,
        "is_bytes": is_bytes,
        "is_pairs": is_pairs,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model and how it is loaded."""

    model: str = option(DEFAULT_MODEL, "Folder, hub id, or a checkpoint that a plugin ships.")
    tokenizer: str | None = option(None, "Folder or hub id of the tokenizer, if not the model's.")
    served_model_name: str | None = option(None, "Name of the model in the API.")
    revision: str | None = option(None, "Branch, tag or commit on the hub.")
    dtype: str = option("auto", "Compute type: auto, float32, bfloat16 or float16.")
    load_format: str = option("auto", "auto or safetensors; dummy draws random weights.")
    max_model_len: int | None = option(None, "Tokens of prompt and answer together, at most.")
    chat_template: str | None = option(None, "A Jinja file to use in place of the model's own.")
    dummy_seed: int = option(0, "Seed of the random weights of load_format dummy.")
    device: str = option("auto", "auto, cpu or cuda.")
    threads: int | None = option(
        None,
        "CPU threads that compute; None: one a physical core, and no more than a container's quota "
        "and OMP_NUM_THREADS allow.",
    )
    batch_invariant: bool = option(
        False, "The same request gives the same bits, whatever else is in the batch; slower."
    )
    kernels: str = option(
        "auto",
        "What layers and sampling run: torch, triton, or native (C++ for a CPU); auto: the fastest "
        "that can run.",
    )
    quantization: str = option(
        "auto",
        "How linear layers keep their weights: none (in the compute type), or a method's name; "
        "auto: the checkpoint's method, or else one that keeps its weights exactly.",
    )
    enforce_eager: bool = option(
        False, "Run every step kernel by kernel: no CUDA graphs, nothing recorded."
    )
    max_cuda_graph_size: int | None = option(
        None, "Requests of the largest step captured as a CUDA graph; None: max_num_seqs, or 512."
    )

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("load_format", self.load_format, LOAD_FORMATS)
        _check_choice("kernels", self.kernels, KERNELS)
        _check_at_least("max_cuda_graph_size", self.max_cuda_graph_size, 1)
        _check_at_least("max_model_len", self.max_model_len, 2)  # a prompt and an answer
        _check_at_least("threads", self.threads, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The paged KV cache."""

    block_size: int | None = option(None, "Tokens per KV block; None: the backend decides.")
    kv_cache_dtype: str = option(
        "auto", "Element type of the KV cache: auto, a compute type, fp8 or int8."
    )
    gpu_memory_utilization: float = option(
        0.9, "Share of a GPU's memory that is used; the KV cache gets what all else leaves of it."
    )
    num_kv_blocks: int | None = option(None, "KV blocks in the pool; None: from the memory.")
    kv_cache_memory_bytes: int | None = option(
        None,
        "Bytes for the KV cache, such as 4GiB; None: what a GPU has left of "
        "gpu_memory_utilization; on a CPU, of what is free, no more than max_num_seqs requests and "
        "a few kept prefixes need.",
        is_bytes=True,
    )
    enable_prefix_caching: bool = option(
        True, "Keep the KV of finished requests while there is room, and reuse equal beginnings."
    )
    kv_store: str = option("none", "Name of an outside KV store, for KV that leaves the pool.")
    kv_store_options: tuple[str, ...] = option(
        (), "Repeatable: KEY=VALUE, an option of the KV store.", is_repeated=True, is_pairs=True
    )
    kv_store_timeout_s: float = option(
        10.0, "Seconds that a KV store may take; then tokens are computed, and a dead store is off."
    )

    def __post_init__(self) -> None:
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise SettingsError(
                "gpu_memory_utilization must be more than 0 and at most 1, got "
                f"{self.gpu_memory_utilization:g}"
            )
        _check_at_least("num_kv_blocks", self.num_kv_blocks, 2)
        if self.kv_store != "none" and not self.enable_prefix_caching:
            raise SettingsError(
                f"kv_store {self.kv_store!r} needs enable_prefix_caching: a store is asked by the "
                "names of cached blocks"
            )
        if self.kv_store_options and self.kv_store == "none":
            raise SettingsError(
                f"kv_store_options {', '.join(self.kv_store_options)} are for a KV store, and none "
                "is chosen; name one with kv_store"
            )
        if self.num_kv_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise SettingsError(
                f"num_kv_blocks {self.num_kv_blocks} and kv_cache_memory_bytes "
                f"{self.kv_cache_memory_bytes} both say how large the KV cache is; give one of them"
            )
        if self.kv_store_timeout_s <= 0:
            raise SettingsError(
                f"kv_store_timeout_s must be more than 0, got {self.kv_store_timeout_s:g}"
            )
        _check_at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        size = self.block_size
        if size is not None and (size < 1 or size & (size - 1)):
            raise SettingsError(f"block_size must be a power of two, got {size}")
        _as_options("kv_store_options", self.kv_store_options)

    def kv_dtype(self, compute_dtype: str) -> str:
        """Return the element type of the cache, a key of `interfaces.kv_cache.DTYPE_BYTES`."""
        wanted = KV_CACHE_DTYPES[self.kv_cache_dtype]
        return compute_dtype if wanted == "auto" else wanted

    @property
    def store_options(self) -> dict[str, str]:
        """`kv_store_options`, by key; the last one counts."""
        return _as_options("kv_store_options", self.kv_store_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """What one engine step may hold."""

    max_num_seqs: int = option(
        0, "Requests that run at the same time, at most; 0: 64 on a CPU, 256 on a GPU."
    )
    max_num_batched_tokens: int = option(
        0, "Tokens in one step over all requests, at most; 0: 2048 on a CPU, 8192 on a GPU."
    )
    max_num_queued: int = option(4096, "Requests that wait at most; more are refused.")
    enable_chunked_prefill: bool = option(True, "Cut long prompts to the step's token budget.")
    max_num_partial_prefills: int = option(
        4, "Prompts that are computed in pieces at the same time, at most; they share the budget."
    )
    max_long_partial_prefills: int = option(
        1, "Of those, long prompts, at most; shorter ones may go past a long one that waits."
    )
    long_prefill_token_threshold: int = option(
        0, "Prompts with more uncomputed tokens are long; 0: none is."
    )
    scheduling_policy: str = option(
        DEFAULT_SCHEDULING_POLICY, "Who goes first: fcfs, priority, or a plugin's policy."
    )
    async_scheduling: bool | None = option(
        None, "Plan a step while the one before runs; None: if the device runs beside the host."
    )
    request_timeout_s: float | None = option(
        None, "Seconds from its arrival after which an unfinished request fails; None: no limit."
    )

    def for_device(self, device: str) -> "SchedulerSettings":
        """Return the settings with the sizes that the device decides: "cpu" or "cuda"."""
        sizes = STEP_SIZES.get(device, STEP_SIZES["cpu"])
        return replace(
            self,
            max_num_seqs=self.max_num_seqs or sizes["max_num_seqs"],
            max_num_batched_tokens=self.max_num_batched_tokens or sizes["max_num_batched_tokens"],
        )

    @property
    def max_running(self) -> int:
        """Requests that can run at the same time: each is owed a token of every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    def __post_init__(self) -> None:
        _check_at_least("max_num_partial_prefills", self.max_num_partial_prefills, 1)
        _check_at_least("max_long_partial_prefills", self.max_long_partial_prefills, 1)
        _check_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if self.request_timeout_s is not None and self.request_timeout_s <= 0:
            raise SettingsError(
                f"request_timeout_s must be more than 0, got {self.request_timeout_s:g}"
            )
        _check_at_least("max_num_seqs", self.max_num_seqs, 0)
        _check_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 0)
        _check_at_least("max_num_queued", self.max_num_queued, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """How the model is spread over devices."""

    tensor_parallel_size: int = option(1, "Devices that share each layer.")
    executor: str = option(DEFAULT_EXECUTOR, "Name of the executor that runs the workers.")
    engine_process: bool | None = option(
        None, "Run the engine in a process of its own; None: when serving on a GPU."
    )

    def __post_init__(self) -> None:
        _check_at_least("tensor_parallel_size", self.tensor_parallel_size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASettings:
    """LoRA adapters."""

    enable_lora: bool = option(False, "Serve LoRA adapters beside the model.")
    lora_modules: tuple[str, ...] = option((), "Adapters to offer, each NAME=PATH or NAME.")
    max_loras: int = option(8, "Adapters in one batch, and held by the worker, at most.")
    max_lora_rank: int = option(64, "Largest rank of an adapter.")
    lora_source: str = option(
        DEFAULT_LORA_SOURCE, "Name of the source that finds and reads adapters."
    )
    lora_source_options: tuple[str, ...] = option(
        (), "Repeatable: KEY=VALUE, an option of the LoRA source.", is_repeated=True, is_pairs=True
    )
    strict_adapters: bool = option(
        False, "Refuse adapters that were made for another base model; else there is a warning."
    )

    def __post_init__(self) -> None:
        _check_at_least("max_loras", self.max_loras, 1)
        _check_at_least("max_lora_rank", self.max_lora_rank, 1)
        _as_options("lora_source_options", self.lora_source_options)
        if self.lora_source_options and not self.enable_lora:
            raise SettingsError(
                f"lora_source_options {', '.join(self.lora_source_options)} are for a LoRA source, "
                "and LoRA is off; give enable_lora"
            )

    @property
    def source_options(self) -> dict[str, str]:
        """`lora_source_options`, by key; the last one counts."""
        return _as_options("lora_source_options", self.lora_source_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSettings:
    """Which plugin serves which part; any name that an installed plugin offers."""

    attention_backend: str = option("auto", "Attention backend; auto chooses by capability.")
    samplers: tuple[str, ...] = option(
        ("default",), "Sampler steps, in any order; `default` stands for the built-in ones."
    )
    structured_output: str = option(DEFAULT_STRUCTURED_OUTPUT, "Structured-output backend.")
    tool_call_parser: str = option("auto", "Tool-call parser; auto goes by the chat template.")
    reasoning_parser: str = option("auto", "Reasoning parser; auto goes by the chat template.")
    grammar_timeout_s: float = option(10.0, "Seconds that a grammar may take to compile.")

    def __post_init__(self) -> None:
        if self.grammar_timeout_s <= 0:
            raise SettingsError(
                f"grammar_timeout_s must be more than 0, got {self.grammar_timeout_s:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Which plugins are loaded."""

    plugins: tuple[str, ...] = option(
        (),
        "Repeatable: no:NAME leaves a plugin out; NAME loads it when discovery is off.",
        flag="p",
        is_repeated=True,
    )
    disable_plugin_autoload: bool | None = option(
        None, "Load only the plugins that ship with quire and those named by -p."
    )
    prefer: tuple[str, ...] = option(
        (),
        "Repeatable: KIND:NAME=PLUGIN, who serves a name that several offer; see `quire plugins "
        "doctor`.",
        is_repeated=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP server."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on; 0 takes a free one.")
    api_key: str | None = option(None, "Ask for this key on every route but /livez and /readyz.")
    max_body_bytes: int = option(8 * 2**20, "Largest request body.", is_bytes=True)
    shutdown_timeout_s: float = option(30.0, "Seconds that running requests get to finish.")

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"port must be from 0 to 65535, got {self.port}")
        _check_at_least("max_body_bytes", self.max_body_bytes, 1)
        _check_at_least("shutdown_timeout_s", self.shutdown_timeout_s, 0)
        if self.api_key == "":
            raise SettingsError("api_key is empty; leave it out to serve without a key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of the above."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    lora: LoRASettings = field(default_factory=LoRASettings)
    parts: PartSettings = field(default_factory=PartSettings)
    plugins: PluginSettings = field(default_factory=PluginSettings)
    server: ServerSettings = field(default_factory=ServerSettings)

    def for_device(self, device: str) -> "Settings":
        """Return the settings with what the device decides: "cpu" or "cuda"."""
        return replace(self, scheduler=self.scheduler.for_device(device))

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Settings":
        """Build the tree from options by name, as `LLM(...)` takes them.

        Raises:
            SettingsError: An option does not exist or has a value that cannot work.
        """
        homes = {o.name: (group, o) for group, kind in GROUPS.items() for o in fields(kind)}
        hints = {n: hint for kind in GROUPS.values() for n, hint in get_type_hints(kind).items()}
        chosen: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for name, value in options.items():
            if name not in homes:
                near = get_close_matches(name, homes, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise SettingsError(f"there is no option {name!r}{hint}; see `quire serve --help`")
            group, declared = homes[name]
            chosen[group][name] = _fit(name, _plain(declared, value), hints[name])
        return cls(**{group: kind(**chosen[group]) for group, kind in GROUPS.items()})


GROUPS: dict[str, type[Any]] = {
    "model": ModelSettings,
    "cache": CacheSettings,
    "scheduler": SchedulerSettings,
    "parallel": ParallelSettings,
    "lora": LoRASettings,
    "parts": PartSettings,
    "plugins": PluginSettings,
    "server": ServerSettings,
}


def parse_truth(value: object, origin: str) -> bool:
    """Read a truth value as people write it in files and in the environment.

    Raises:
        SettingsError: It is none; `origin` says where it stood.
    """
    truth = TRUTHS.get(str(value).strip().lower())
    if truth is None:
        raise SettingsError(f"{origin} must be true or false, got {value!r}")
    return truth


def join_pairs(name: str, value: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return a mapping as the KEY=VALUE texts that it stands for.

    Raises:
        SettingsError: A value is neither text nor a number.
    """
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str | int | float):
            raise SettingsError(f"{name} has values of text or numbers, got {key!r}: {item!r}")
    return tuple(f"{key}={item}" for key, item in value.items())


def _plain(declared: Field[Any], value: Any) -> Any:
    """Return a value without the forms that only some options may be written in."""
    if declared.metadata["is_bytes"] and isinstance(value, str):
        return parse_byte_size(value, declared.name)
    if declared.metadata["is_pairs"] and isinstance(value, Mapping):
        return join_pairs(declared.name, value)
    return value


def _fit(name: str, value: Any, hint: Any) -> Any:
    """Return a value as its option's type; Python callers may write lists and paths.

    Raises:
        SettingsError: It has another type.
    """
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if value is None and NoneType in kinds:
        return None
    kind = kinds[0]
    if get_origin(kind) is tuple:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise SettingsError(f"{name} must be a list of strings, got {value!r}")
    if kind is str and isinstance(value, str | os.PathLike):
        return os.fspath(value)
    is_bool = isinstance(value, bool)
    if kind is bool and is_bool:
        return value
    if kind is int and isinstance(value, int) and not is_bool:
        return value
    if kind is float and isinstance(value, int | float) and not is_bool and math.isfinite(value):
        return float(value)
    raise SettingsError(f"{name} must be {TYPE_WORDS[kind]}, got {value!r}")


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _as_options(name: str, values: Iterable[str]) -> dict[str, str]:
    """Return a part's options by key; the last one of a key counts."""
    options = {}
    for given in values:
        key, equals, value = given.partition("=")
        if not key or not equals:
            raise SettingsError(f"{name} are KEY=VALUE each, got {given!r}")
        options[key] = value
    return options


def _check_at_least(name: str, value: float | None, low: int) -> None:
    if value is not None and value < low:
        raise SettingsError(f"{name} must be at least {low}, got {value}")
