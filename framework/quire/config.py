"""Settings of the engine and the server: one tree of frozen dataclasses, one per subject.

Each option is written once, here. The command line, YAML files, environment variables,
`LLM(...)` and the docs are views of these fields: the option `max_num_seqs` is `--max-num-seqs`,
`max-num-seqs:` in a file, `QUIRE_MAX_NUM_SEQS`, and `LLM(max_num_seqs=...)`. A default of None
means that `compose` derives the value from the model or the machine, and logs it.
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
from quire.other_engines import OPTIONS_ELSEWHERE

T = TypeVar("T")

ENVIRONMENT_PREFIX = "QUIRE_"
TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

MAX_TIMEOUT_S = 1_000_000  # 11 days; waits are counted in milliseconds, as a 32-bit integer

TYPE_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
LIST_WORDS = {str: "strings", int: "whole numbers"}

DEFAULT_MODEL = "demo"
DEFAULT_STRUCTURED_OUTPUT = "auto"
DEFAULT_LORA_SOURCE = "peft"
DEFAULT_EXECUTOR = "in_process"  # of one worker
GRID_EXECUTOR = "processes"  # of several workers
DEFAULT_SCHEDULING_POLICY = "fcfs"
DEFAULT_LOGITS_PROCESSORS = (
    "classifier_free_guidance", "dry", "repetition_penalty", "sampled_token_penalties",
    "logit_bias", "allowed_token_ids", "bad_words", "watermark",
    "dynamic_temperature", "quadratic_smoothing", "temperature",
    "epsilon_cutoff", "eta_cutoff", "min_p", "mirostat", "top_a", "top_k_top_p", "top_n_sigma",
    "typical_p", "xtc",
)  # fmt: skip
DEFAULT_SAMPLERS = {
    "torch": "torch_gumbel",
    "triton": "gumbel",
    "native": "cpu_gumbel",
}  # by the kernels that samplers run
STEP_SIZES = {  # on a GPU, a step of 256 requests takes little more time than a step of one
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
MAX_API_SERVERS = 64
METRICS_NAMES = ("quire", "vllm", "both")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")


def option(
    default: T,
    help_text: str,
    *,
    flag: str | None = None,
    is_repeated: bool = False,
    is_bytes: bool = False,
    is_pairs: bool = False,
    is_secret: bool = False,
    is_path: bool = False,
    choices: Iterable[str] = (),
    kind: str = "",
) -> T:
    """Declare a field together with its help text.

    Args:
        default: Default value; None where the model or the machine decides.
        help_text: One sentence for the command line and the docs.
        flag: Short flag, if it has one.
        is_repeated: True for a list whose flag takes one value and may be repeated.
        is_bytes: True for a number of bytes, which may be written with a unit.
        is_pairs: True for a list of KEY=VALUE, which may be written as a mapping.
        is_secret: True for a value that stands in no representation, message or listing.
        is_path: True for the path of a file or folder.
        choices: Values that a shell offers to complete.
        kind: Kind of parts whose registered names are values as well.
    """
    metadata = {
        "help": help_text,
        "flag": flag,
        "is_repeated": is_repeated,
        "is_bytes": is_bytes,
        "is_pairs": is_pairs,
        "is_secret": is_secret,
        "is_path": is_path,
        "choices": tuple(choices),
        "kind": kind,
    }
    return field(default=default, metadata=metadata, repr=not is_secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model and how it is loaded."""

    model: str = option(
        DEFAULT_MODEL,
        "Folder, GGUF file, hub id, or name of a checkpoint that a plugin ships.",
        flag="m",
        kind="checkpoints",
        is_path=True,
    )
    tokenizer: str | None = option(
        None,
        "Folder, GGUF file or hub id of the tokenizer, if it is not the model's.",
        is_path=True,
    )
    served_model_name: str | None = option(None, "Name of the model in the API.")
    revision: str | None = option(None, "Branch, tag or commit on the hub.")
    use_modelscope: bool = option(
        False, "Download models from ModelScope instead of the Hugging Face hub."
    )
    dtype: str = option(
        "auto",
        "Compute dtype: float32, bfloat16 or float16; auto: the checkpoint's own; on a CPU only if "
        "the processor multiplies it, else float32.",
        choices=DTYPES,
    )
    load_format: str = option(
        "auto",
        "Format of the weights: auto, safetensors, or dummy (random weights).",
        choices=LOAD_FORMATS,
    )
    max_model_len: int | None = option(
        None, "Maximum number of tokens of a prompt and its completion together."
    )
    chat_template: str | None = option(
        None, "Jinja file to use instead of the model's template.", is_path=True
    )
    special_tokens_in_messages: bool = option(
        False,
        "Read special tokens that the texts of messages and tools spell, such as <|im_end|>, as "
        "special tokens. By default they are plain text, so that no text can forge a turn.",
    )
    dummy_seed: int = option(0, "Seed of the random weights of load_format dummy.")
    device: str = option(
        "auto", "Device to compute on: auto, cpu or cuda.", choices=("auto", "cpu", "cuda")
    )
    threads: int | None = option(
        None,
        "Number of CPU threads that compute; None: one per physical core, limited by the "
        "container's CPU quota and OMP_NUM_THREADS.",
    )
    batch_invariant: bool = option(
        False,
        "Make the result of a request bitwise independent of the rest of the batch; slower.",
    )
    kernels: str = option(
        "auto",
        "Kernels of layers and sampling: torch, triton, or native (C++ for a CPU); auto: the "
        "fastest that can run.",
        choices=KERNELS,
    )
    quantization: str = option(
        "auto",
        "Quantization method of linear layers, or none (weights in the compute dtype); auto: the "
        "checkpoint's method, else one that is lossless for its weights.",
        kind="quantizations",
        choices=("auto", "none"),
    )
    model_impl: str = option(
        "auto",
        "Implementation of the model: quire (that of the plugin which registers its architecture), "
        "transformers, or another fallback of a plugin; auto: quire's, else a fallback that can "
        "run it.",
        choices=("auto", "quire", "transformers"),
    )
    trust_remote_code: bool = option(
        False,
        "Run the Python code that a checkpoint brings with it, with the rights of this process; "
        "only a fallback such as transformers does.",
    )
    enforce_eager: bool = option(
        False, "Run every step eagerly, without CUDA graphs and without CPU graphs."
    )
    max_cuda_graph_size: int | None = option(
        None,
        "Largest number of requests that CUDA graphs are captured for; None: max_num_seqs, "
        "at most 512.",
    )

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("load_format", self.load_format, LOAD_FORMATS)
        _check_choice("kernels", self.kernels, KERNELS)
        _check_at_least("max_cuda_graph_size", self.max_cuda_graph_size, 1)
        _check_at_least("max_model_len", self.max_model_len, 2)  # one for the completion
        _check_at_least("threads", self.threads, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The paged KV cache."""

    block_size: int | None = option(
        None, "Number of tokens per KV block; None: the attention backend's default."
    )
    kv_cache_dtype: str = option(
        "auto",
        "Dtype of the KV cache: auto (the compute dtype), a compute dtype, fp8 or int8.",
        choices=KV_CACHE_DTYPES,
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Fraction of the GPU's memory to use; the KV cache gets what remains of it after weights, "
        "activations and CUDA graphs.",
    )
    num_kv_blocks: int | None = option(
        None, "Number of KV blocks in the pool; None: as many as fit the memory of the cache."
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "Bytes for the KV cache, such as 4GiB; None: on a GPU, what remains of "
        "gpu_memory_utilization; on a CPU, a part of the free memory, at most what max_num_seqs "
        "requests and a few cached prefixes need.",
        is_bytes=True,
    )
    enable_prefix_caching: bool = option(
        True, "Cache the KV blocks of finished requests while there is room, and reuse prefixes."
    )
    kv_events: bool = option(
        False,
        "Report which KV blocks the prefix cache stores and removes: the feed that "
        "AsyncEngine.kv_events returns, and that quire.ray routes by.",
    )
    kv_store: str = option(
        "none",
        "Name of an external KV store, which keeps KV blocks outside the pool.",
        kind="kv_stores",
        choices=("none",),
    )
    kv_store_options: tuple[str, ...] = option(
        (), "Option of the KV store as KEY=VALUE; repeatable.", is_repeated=True, is_pairs=True
    )
    kv_store_timeout_s: float = option(
        10.0,
        "Seconds to wait for a lookup or a load of the KV store; then the tokens are computed, and "
        "a store that no longer responds is turned off.",
    )

    def __post_init__(self) -> None:
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise SettingsError(
                "gpu_memory_utilization must be more than 0 and at most 1, got "
                f"{self.gpu_memory_utilization:g}"
            )
        _check_at_least("num_kv_blocks", self.num_kv_blocks, 2)
        if self.kv_events and not self.enable_prefix_caching:
            raise SettingsError(
                "kv_events needs enable_prefix_caching: they are the changes of the prefix cache"
            )
        if self.kv_store != "none" and not self.enable_prefix_caching:
            raise SettingsError(
                f"kv_store {self.kv_store!r} needs enable_prefix_caching: a store finds blocks by "
                "their prefix-cache hashes"
            )
        if self.kv_store_options and self.kv_store == "none":
            raise SettingsError(
                f"kv_store_options {', '.join(self.kv_store_options)} are set, but no KV store is "
                "chosen; name one with kv_store"
            )
        if self.num_kv_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise SettingsError(
                f"num_kv_blocks {self.num_kv_blocks} and kv_cache_memory_bytes "
                f"{self.kv_cache_memory_bytes} both set the size of the KV cache; give only one"
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
        """Return the dtype of the cache, a key of `interfaces.kv_cache.DTYPE_BYTES`."""
        wanted = KV_CACHE_DTYPES[self.kv_cache_dtype]
        return compute_dtype if wanted == "auto" else wanted

    @property
    def store_options(self) -> dict[str, str]:
        """`kv_store_options` by key; the last value of a key counts."""
        return _as_options("kv_store_options", self.kv_store_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Limits and order of scheduling."""

    max_num_seqs: int = option(
        0, "Maximum number of requests that run at the same time; 0: 64 on a CPU, 256 on a GPU."
    )
    max_num_batched_tokens: int = option(
        0, "Maximum number of tokens per step over all requests; 0: 2048 on a CPU, 8192 on a GPU."
    )
    max_num_queued: int = option(2048, "Maximum number of waiting requests; more are refused.")
    enable_chunked_prefill: bool = option(
        True, "Split long prompts into chunks that fit the token budget of a step."
    )
    max_num_partial_prefills: int = option(
        4, "Maximum number of prompts in chunked prefill at the same time; they share the budget."
    )
    max_long_partial_prefills: int = option(
        1,
        "Maximum number of long prompts among these; shorter prompts may overtake a waiting long "
        "one.",
    )
    long_prefill_token_threshold: int = option(
        0, "A prompt with more uncomputed tokens than this is long; 0: no prompt is."
    )
    scheduling_policy: str = option(
        DEFAULT_SCHEDULING_POLICY,
        "Order in which requests are scheduled: fcfs, priority, or a plugin's policy.",
        kind="scheduling_policies",
    )
    async_scheduling: bool | None = option(
        None,
        "Schedule a step while the previous one runs; None: if the device runs asynchronously.",
    )
    request_timeout_s: float | None = option(
        None, "Seconds after its arrival at which an unfinished request fails; None: no limit."
    )
    max_queue_wait_s: float = option(
        600.0,
        "Estimated seconds in the queue from which on the server refuses a request at once; by "
        "default those after which OpenAI's clients give up.",
    )

    def for_device(self, device: str) -> "SchedulerSettings":
        """Return the settings with the default step sizes of a device, "cpu" or "cuda"."""
        sizes = STEP_SIZES.get(device, STEP_SIZES["cpu"])
        return replace(
            self,
            max_num_seqs=self.max_num_seqs or sizes["max_num_seqs"],
            max_num_batched_tokens=self.max_num_batched_tokens or sizes["max_num_batched_tokens"],
        )

    @property
    def max_running(self) -> int:
        """Number of requests that can run at once: each needs one token of every step."""
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
        check_timeout("max_queue_wait_s", self.max_queue_wait_s, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """Workers, devices and processes."""

    tensor_parallel_size: int = option(1, "Number of devices that each layer is sharded over.")
    enable_expert_parallel: bool = option(
        False,
        "Divide the experts of a mixture over the tensor-parallel devices, instead of each "
        "expert's width.",
    )
    pipeline_parallel_size: int = option(
        1, "Number of pipeline stages that the layers are divided into."
    )
    pipeline_layers: tuple[int, ...] = option(
        (),
        "Number of layers of each pipeline stage, such as 10,12,10; empty: stages of about equal "
        "bytes.",
    )
    data_parallel_size: int = option(
        1,
        "Number of replicas: engines that have the whole model each, in processes of their own, "
        "and share the requests.",
    )
    executor: str = option(
        "auto",
        "Executor that places the workers; auto: one worker runs in the engine's process, and each "
        "of several has a process.",
        kind="executors",
        choices=("auto",),
    )
    engine_process: bool | None = option(
        None, "Run the engine in a separate process; None: when serving, on Linux."
    )
    worker_address: str = option(
        "",
        "Address HOST or HOST:PORT of this machine at which workers on other machines join; "
        "without a port, a free one.",
    )
    worker_key_file: str = option(
        "",
        "File of the secret with which workers on other machines join; if it does not exist, it "
        "is written for this start, and removed once all have joined.",
        is_path=True,
    )
    symmetric_memory: bool = option(
        True,
        "Let GPUs of one machine that share a layer add up small tensors in memory that all of "
        "them can read, instead of by NCCL.",
    )
    worker_start_timeout_s: float = option(
        600.0, "Time for all workers to start, to load the weights and to allocate, in seconds."
    )
    step_timeout_s: float = option(
        300.0, "Time for one step of the workers, in seconds; a hanging worker ends the engine."
    )
    stall_limit_s: float | None = option(
        None,
        "Time for one step, in seconds, after which a server is not ready (`stalled`) until the "
        "step ends; None: 60, or step_timeout_s if that is set longer.",
    )

    def __post_init__(self) -> None:
        _check_at_least("tensor_parallel_size", self.tensor_parallel_size, 1)
        check_timeout("worker_start_timeout_s", self.worker_start_timeout_s, 1)
        check_timeout("step_timeout_s", self.step_timeout_s, 1)
        if self.stall_limit_s is not None:
            check_timeout("stall_limit_s", self.stall_limit_s, 1)
        _check_at_least("pipeline_parallel_size", self.pipeline_parallel_size, 1)
        for num_layers in self.pipeline_layers:
            _check_at_least("each number of pipeline_layers", num_layers, 1)
        given, num_stages = len(self.pipeline_layers), self.pipeline_parallel_size
        if given not in (0, num_stages):
            raise SettingsError(
                f"pipeline_layers {','.join(map(str, self.pipeline_layers))} is for {given} "
                f"stage{'' if given == 1 else 's'}, and pipeline_parallel_size is {num_stages}; "
                f"set pipeline_parallel_size to {given}, or leave pipeline_layers out"
            )
        _check_at_least("data_parallel_size", self.data_parallel_size, 1)
        if self.data_parallel_size > 1 and self.engine_process is False:
            raise SettingsError(
                f"data_parallel_size {self.data_parallel_size} starts a process for each engine, "
                "so engine_process cannot be false; leave it out, or set data_parallel_size to 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASettings:
    """LoRA adapters."""

    enable_lora: bool = option(False, "Serve LoRA adapters of the model.")
    lora_modules: tuple[str, ...] = option((), "Adapters to serve, each NAME=PATH or NAME.")
    max_loras: int = option(8, "Maximum number of adapters in one batch, and loaded in the worker.")
    max_lora_rank: int = option(64, "Maximum rank of an adapter.")
    lora_source: str = option(
        DEFAULT_LORA_SOURCE,
        "Name of the source that finds and reads adapters.",
        kind="lora_sources",
    )
    lora_source_options: tuple[str, ...] = option(
        (), "Option of the LoRA source as KEY=VALUE; repeatable.", is_repeated=True, is_pairs=True
    )
    strict_adapters: bool = option(
        False, "Refuse adapters made for another base model, instead of logging a warning."
    )

    def __post_init__(self) -> None:
        _check_at_least("max_loras", self.max_loras, 1)
        _check_at_least("max_lora_rank", self.max_lora_rank, 1)
        _as_options("lora_source_options", self.lora_source_options)
        for name, values in (
            ("lora_modules", self.lora_modules),
            ("lora_source_options", self.lora_source_options),
        ):
            if values and not self.enable_lora:
                raise SettingsError(
                    f"{name} {', '.join(values)} are set, but LoRA is off; set enable_lora"
                )

    @property
    def source_options(self) -> dict[str, str]:
        """`lora_source_options` by key; the last value of a key counts."""
        return _as_options("lora_source_options", self.lora_source_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSettings:
    """Parts of the engine, by the names under which plugins offer them."""

    attention_backend: str = option(
        "auto",
        "Attention backend; auto: the best one that supports the model and the device.",
        kind="attention_backends",
        choices=("auto",),
    )
    samplers: tuple[str, ...] = option(
        ("default",),
        "Sampler steps, in any order; `default` stands for the built-in ones.",
        kind="samplers",
        choices=("default",),
    )
    structured_output: str = option(
        DEFAULT_STRUCTURED_OUTPUT,
        "Structured-output backend; auto: for each request the first that honours its constraint.",
        kind="structured_output",
        choices=("auto",),
    )
    tool_call_parser: str = option(
        "auto",
        "Tool-call parser: a name, or a file with a table of a format (./NAME.toml) or a Python "
        "class (./NAME.py); auto: detected from the chat template and the architecture.",
        kind="tool_parsers",
        choices=("auto",),
    )
    reasoning_parser: str = option(
        "auto",
        "Reasoning parser: a name, or a file with a table of a format (./NAME.toml) or a Python "
        "class (./NAME.py); auto: detected from the chat template and the architecture.",
        kind="reasoning_parsers",
        choices=("auto",),
    )
    grammar_timeout_s: float = option(
        10.0, "Seconds of CPU time that a grammar may take to compile."
    )

    def __post_init__(self) -> None:
        if self.grammar_timeout_s <= 0:
            raise SettingsError(
                f"grammar_timeout_s must be more than 0, got {self.grammar_timeout_s:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """What requests may ask of the sampled tokens."""

    max_logprobs: int = option(
        20,
        "Maximum number of most likely tokens per position that a request may ask log "
        "probabilities of; -1: the whole vocabulary.",
    )
    logprobs_mode: str = option(
        "raw_logprobs",
        "Values that `logprobs` reports: raw_logprobs (the model's own), processed_logprobs (after "
        "masks and every sampler step), raw_logits or processed_logits.",
        choices=LOGPROBS_MODES,
    )

    def __post_init__(self) -> None:
        _check_at_least("max_logprobs", self.max_logprobs, -1)
        _check_choice("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Loading of plugins."""

    plugins: tuple[str, ...] = option(
        (),
        "no:NAME leaves a plugin out; NAME loads it even if autoload is disabled; repeatable.",
        flag="p",
        is_repeated=True,
    )
    disable_plugin_autoload: bool | None = option(
        None, "Load only the plugins that ship with quire and those named by -p."
    )
    prefer: tuple[str, ...] = option(
        (),
        "KIND:NAME=PLUGIN selects the plugin of a name that several plugins offer; repeatable; see "
        "`quire plugins doctor`.",
        is_repeated=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP server."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on; 0: any free port.")
    api_key: tuple[str, ...] = option(
        (),
        "API keys; every route except /livez, /readyz and the pages of `ui` requires one of them. "
        "A flag is visible to other users of the machine: QUIRE_API_KEY (joined by commas) and "
        "api_key_file are not.",
        is_repeated=True,
        is_secret=True,
    )
    max_body_bytes: int = option(8 * 2**20, "Maximum size of a request body.", is_bytes=True)
    max_received_bytes: int = option(
        128 * 2**20,
        "Maximum size of all request bodies that are being received, together.",
        is_bytes=True,
    )
    shutdown_timeout_s: float = option(
        30.0, "Seconds that running requests have to finish at shutdown."
    )
    api_key_file: str | None = option(
        None,
        "File of API keys, read again when it changes: one per line, or YAML with limits.",
        is_path=True,
    )
    admin_key: tuple[str, ...] = option(
        (),
        "Keys of the control routes, which do not exist without one; better QUIRE_ADMIN_KEY than a "
        "flag.",
        is_repeated=True,
        is_secret=True,
    )
    admin_key_file: str | None = option(
        None,
        "File of keys of the control routes, in the format of api_key_file.",
        is_path=True,
    )
    share_prefix_cache: bool = option(
        False, "Share the prefix cache among API keys; by default each key has its own."
    )
    lenient_fields: bool = option(
        False,
        "Leave out fields of requests that do not exist, and log each name once; by default such a "
        "request is refused.",
    )
    metrics_names: str = option(
        "quire",
        "Names of the metrics at /metrics: quire, vllm (its core metrics), or both.",
        choices=METRICS_NAMES,
    )
    open_metrics: bool = option(
        False,
        "Serve /metrics without an API key: on the port of health_port if there is one, else on "
        "the main port.",
    )
    ui: bool = option(
        True,
        "Serve the pages /ui and /docs for a browser. They have no data of the server and need no "
        "API key; what they ask the server for does.",
    )
    access_log: str | None = option(
        None,
        "File to which a JSON line is appended for each HTTP request; -: the standard output; "
        "None: no access log.",
        is_path=True,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector, to which traces of requests are sent by OTLP over "
        "HTTP, such as http://localhost:4318/v1/traces; needs quire[otel]; None: no traces.",
    )

    routes: tuple[str, ...] = option(
        (),
        "Routes of plugins to serve, by name; a route of an installed plugin that is not named is "
        "not served.",
        kind="routes",
    )
    api_server_count: int = option(
        1,
        "Number of processes that serve HTTP, tokenize and check requests for the one engine. "
        "More than one need an engine in a process of its own, and no replicas.",
    )
    responses_store_max: int = option(
        1000,
        "Number of responses of /v1/responses that are stored, in memory; 0 stores none. Several "
        "front ends (api_server_count) store none either.",
    )
    responses_store_max_bytes: int = option(
        64 * 2**20, "Maximum size of all stored responses, together.", is_bytes=True
    )
    responses_store_ttl_s: float = option(
        86400.0, "Seconds for which a response of /v1/responses is stored."
    )
    tool_server: tuple[str, ...] = option(
        (),
        "Server of the Model Context Protocol whose tools /v1/responses may call, as its URL or as "
        "the command that starts it, with a name in front: NAME=URL_OR_COMMAND. Repeatable; needs "
        "quire[mcp].",
        is_repeated=True,
    )
    tool_server_env: tuple[str, ...] = option(
        (),
        "Environment variable that the commands of tool servers get, beside PATH, HOME and the "
        "locale; repeatable.",
        is_repeated=True,
    )
    tool_server_token_file: tuple[str, ...] = option(
        (),
        "NAME=FILE with the bearer token of the tool server of that name, if it is a URL; "
        "repeatable.",
        is_repeated=True,
        is_pairs=True,
    )
    tool_server_max_rounds: int = option(
        10, "Number of times that the model may call tools of tool servers in one response."
    )
    tool_server_timeout_s: float = option(60.0, "Seconds that one call of a tool server may take.")
    tool_server_max_bytes: int = option(
        64 * 2**10,
        "Maximum size of the output of one call of a tool server; what is beyond it is cut off.",
        is_bytes=True,
    )
    health_port: int = option(
        0,
        "Further port for /livez, /readyz and /health, which need no key there and are answered by "
        "a thread of its own, however busy the server is; 0: none.",
    )

    @property
    def requires_key(self) -> bool:
        """Whether requests need an API key."""
        return bool(self.api_key) or self.api_key_file is not None

    @property
    def has_control_routes(self) -> bool:
        """Whether there is an admin key, and so routes that need one."""
        return bool(self.admin_key) or self.admin_key_file is not None

    @property
    def tool_server_token_files(self) -> dict[str, str]:
        """`tool_server_token_file` by the name of the tool server."""
        return _as_options("tool_server_token_file", self.tool_server_token_file)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"port must be from 0 to 65535, got {self.port}")
        if not 0 <= self.health_port <= 65535:
            raise SettingsError(f"health_port must be from 0 to 65535, got {self.health_port}")
        if self.health_port and self.health_port == self.port:
            raise SettingsError(f"port and health_port are both {self.port}; they must differ")
        _check_at_least("max_body_bytes", self.max_body_bytes, 1)
        if self.max_received_bytes < self.max_body_bytes:
            raise SettingsError(
                f"max_received_bytes is {self.max_received_bytes}, less than one body may have: "
                f"max_body_bytes is {self.max_body_bytes}"
            )
        _check_at_least("shutdown_timeout_s", self.shutdown_timeout_s, 0)
        _check_at_least("responses_store_max", self.responses_store_max, 0)
        _check_at_least("responses_store_max_bytes", self.responses_store_max_bytes, 1)
        _check_at_least("responses_store_ttl_s", self.responses_store_ttl_s, 1)
        _check_at_least("tool_server_max_rounds", self.tool_server_max_rounds, 1)
        check_timeout("tool_server_timeout_s", self.tool_server_timeout_s, 0.1)
        _check_at_least("tool_server_max_bytes", self.tool_server_max_bytes, 256)
        _as_options("tool_server_token_file", self.tool_server_token_file)
        self._check_api_servers()
        for name, keys in (("api_key", self.api_key), ("admin_key", self.admin_key)):
            if "" in keys:
                raise SettingsError(f"{name} is empty; leave it out to do without such a key")
        _check_choice("metrics_names", self.metrics_names, METRICS_NAMES)

    def _check_api_servers(self) -> None:
        count, share = (
            self.api_server_count,
            self.max_received_bytes // max(1, self.api_server_count),
        )
        if not 1 <= count <= MAX_API_SERVERS:
            raise SettingsError(
                f"api_server_count must be from 1 to {MAX_API_SERVERS}, got {count}"
            )
        if share < self.max_body_bytes:
            raise SettingsError(
                f"max_received_bytes is {self.max_received_bytes}, which is {share} for each of "
                f"{count} processes (api_server_count), less than one body may have: "
                f"max_body_bytes is {self.max_body_bytes}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, by group."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    lora: LoRASettings = field(default_factory=LoRASettings)
    parts: PartSettings = field(default_factory=PartSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    plugins: PluginSettings = field(default_factory=PluginSettings)
    server: ServerSettings = field(default_factory=ServerSettings)

    def __post_init__(self) -> None:
        if self.server.api_server_count == 1:
            return
        if self.parallel.engine_process is False:
            raise SettingsError(
                f"api_server_count is {self.server.api_server_count}, and several processes share "
                "an engine only if it has a process of its own; leave out engine_process"
            )
        if self.parallel.data_parallel_size > 1:
            raise SettingsError(
                f"api_server_count is {self.server.api_server_count} and data_parallel_size is "
                f"{self.parallel.data_parallel_size}: several processes cannot share several "
                "replicas; leave one of them at 1"
            )

    def for_device(self, device: str) -> "Settings":
        """Return the settings with the defaults of a device, "cpu" or "cuda"."""
        return replace(self, scheduler=self.scheduler.for_device(device))

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Settings":
        """Build the tree from options by name, as `LLM(...)` takes them.

        Raises:
            SettingsError: An option does not exist, or its value is invalid.
        """
        known = {o.name: (group, o) for group, kind in GROUPS.items() for o in fields(kind)}
        hints = {n: hint for kind in GROUPS.values() for n, hint in get_type_hints(kind).items()}
        chosen: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for name, value in options.items():
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                if name in OPTIONS_ELSEWHERE:
                    hint = f": {OPTIONS_ELSEWHERE[name]}"
                raise SettingsError(f"there is no option {name!r}{hint}; see `quire serve --help`")
            group, declared = known[name]
            chosen[group][name] = _read(declared, value, hints[name])
        return cls(**{group: kind(**chosen[group]) for group, kind in GROUPS.items()})


GROUPS: dict[str, type[Any]] = {
    "model": ModelSettings,
    "cache": CacheSettings,
    "scheduler": SchedulerSettings,
    "parallel": ParallelSettings,
    "lora": LoRASettings,
    "parts": PartSettings,
    "sampling": SamplingSettings,
    "plugins": PluginSettings,
    "server": ServerSettings,
}


def parse_truth(value: object, origin: str) -> bool:
    """Parse a boolean as it is written in files and in the environment.

    Args:
        value: Text such as "true", "yes" or "0".
        origin: Name of the option or variable, for the error.

    Raises:
        SettingsError: The value is not a boolean.
    """
    truth = TRUTHS.get(str(value).strip().lower())
    if truth is None:
        raise SettingsError(f"{origin} must be true or false, got {value!r}")
    return truth


def check_timeout(name: str, seconds: float, low: float) -> None:
    """Check that a time can be waited for.

    Args:
        name: Name of the option, for the error.
        seconds: The time.
        low: Smallest time that is allowed.

    Raises:
        SettingsError: It is too small, too large, or no number.
    """
    if not low <= seconds <= MAX_TIMEOUT_S:  # also refuses NaN
        raise SettingsError(
            f"{name} must be at least {low:g} and at most {MAX_TIMEOUT_S} seconds (11 days), got "
            f"{seconds:g}"
        )


def join_pairs(name: str, value: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return a mapping as texts KEY=VALUE.

    Raises:
        SettingsError: A key is not text, or a value is neither text nor a number.
    """
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str | int | float):
            raise SettingsError(f"{name} must have text or numbers, got {key!r}: {item!r}")
    return tuple(f"{key}={item}" for key, item in value.items())


def _read(declared: Field[Any], value: Any, hint: Any) -> Any:
    """Convert a value to its option's type; no message shows the value of a secret.

    Raises:
        SettingsError: The value has another type.
    """
    try:
        return _convert(declared.name, _parse_shorthand(declared, value), hint)
    except SettingsError:
        if declared.metadata["is_secret"]:
            raise SettingsError(f"{declared.name} must be a list of strings") from None
        raise


def _parse_shorthand(declared: Field[Any], value: Any) -> Any:
    """Parse bytes with a unit and mappings, for the options that allow them."""
    if declared.metadata["is_bytes"] and isinstance(value, str):
        return parse_byte_size(value, declared.name)
    if declared.metadata["is_pairs"] and isinstance(value, Mapping):
        return join_pairs(declared.name, value)
    return value


def _convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to its option's type; Python callers may pass lists and paths.

    Raises:
        SettingsError: The value has another type.
    """
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if value is None and NoneType in kinds:
        return None
    kind = kinds[0]
    if get_origin(kind) is tuple:
        return _convert_list(name, value, get_args(kind)[0])
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


def _convert_list(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """Convert a list or tuple whose items have the type `kind`; True is no number.

    Raises:
        SettingsError: It is no list, or an item has another type.
    """
    is_list = isinstance(value, list | tuple)
    if is_list and all(isinstance(i, kind) and not isinstance(i, bool) for i in value):
        return tuple(value)
    raise SettingsError(f"{name} must be a list of {LIST_WORDS[kind]}, got {value!r}")


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        near = get_close_matches(value, choices, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def _as_options(name: str, values: Iterable[str]) -> dict[str, str]:
    """Return KEY=VALUE options by key; the last value of a key counts."""
    options = {}
    for given in values:
        key, equals, value = given.partition("=")
        if not key or not equals:
            raise SettingsError(f"{name} must be KEY=VALUE each, got {given!r}")
        options[key] = value
    return options


def _check_at_least(name: str, value: float | None, low: int) -> None:
    if value is not None and value < low:
        raise SettingsError(f"{name} must be at least {low}, got {value}")
