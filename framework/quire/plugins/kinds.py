"""Kinds of parts that a plugin may offer, in the order of registration; one registry each."""

from quire.interfaces.attention import AttentionCapabilities, KVBackend
from quire.interfaces.executor import Executor, ExecutorCapabilities
from quire.interfaces.http_route import HTTPRoute, HTTPRouteCapabilities
from quire.interfaces.kv_cache import KVCacheSpec, KVSpecCapabilities
from quire.interfaces.kv_transfer import KVStoreCapabilities, KVStoreScheduler
from quire.interfaces.lora import LoRASource
from quire.interfaces.model import Model, ModelCapabilities
from quire.interfaces.quantization import Quantization, QuantizationCapabilities
from quire.interfaces.reasoning import ReasoningParser, ReasoningParserCapabilities
from quire.interfaces.sampling import SamplerCapabilities, SamplerStep
from quire.interfaces.scheduling import SchedulingPolicy, SchedulingPolicyCapabilities
from quire.interfaces.structured_output import GrammarCapabilities, StructuredOutputBackend
from quire.interfaces.tool_parsing import ToolParser, ToolParserCapabilities
from quire.plugins.registry import Kind

KINDS = (
    Kind("checkpoints", "checkpoint"),
    Kind("models", "model", capabilities=ModelCapabilities, interface=Model),
    Kind(
        "attention_backends",
        "attention backend",
        capabilities=AttentionCapabilities,
        interface=KVBackend,
    ),
    Kind(
        "kv_cache_specs",
        "KV-cache spec",
        capabilities=KVSpecCapabilities,
        interface=KVCacheSpec,
    ),
    Kind(
        "quantizations",
        "quantization method",
        capabilities=QuantizationCapabilities,
        interface=Quantization,
    ),
    Kind("samplers", "sampler", capabilities=SamplerCapabilities, interface=SamplerStep),
    Kind(
        "structured_output",
        "structured-output backend",
        capabilities=GrammarCapabilities,
        interface=StructuredOutputBackend,
    ),
    Kind(
        "tool_parsers",
        "tool-call parser",
        capabilities=ToolParserCapabilities,
        interface=ToolParser,
    ),
    Kind(
        "reasoning_parsers",
        "reasoning parser",
        capabilities=ReasoningParserCapabilities,
        interface=ReasoningParser,
    ),
    Kind("lora_sources", "LoRA source", interface=LoRASource),
    Kind(
        "scheduling_policies",
        "scheduling policy",
        capabilities=SchedulingPolicyCapabilities,
        interface=SchedulingPolicy,
    ),
    Kind("kv_stores", "KV store", capabilities=KVStoreCapabilities, interface=KVStoreScheduler),
    Kind(
        "executors",
        "executor",
        api=2,
        oldest_api=2,
        capabilities=ExecutorCapabilities,
        interface=Executor,
    ),
    Kind("routes", "HTTP route", capabilities=HTTPRouteCapabilities, interface=HTTPRoute),
)
