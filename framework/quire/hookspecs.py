"""Hooks that a plugin may implement, in the order of firing: the whole plugin API.

The `register_*` hooks fire once, when a process starts: one hook per kind. A plugin offers names
and import strings; nothing heavy is imported. The others fire at most once per request. An error
in one of them fails that request, or is only logged; other requests are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pluggy import HookimplMarker, HookspecMarker

if TYPE_CHECKING:
    from quire.interfaces.attention import KVBackend
    from quire.interfaces.checkpoint import CheckpointSource
    from quire.interfaces.executor import Executor
    from quire.interfaces.http_route import HTTPRoute
    from quire.interfaces.kv_cache import KVCacheSpec
    from quire.interfaces.kv_transfer import KVStoreScheduler
    from quire.interfaces.lora import LoRASource
    from quire.interfaces.model import Model
    from quire.interfaces.quantization import Quantization
    from quire.interfaces.reasoning import ReasoningParser
    from quire.interfaces.sampling import SamplerStep
    from quire.interfaces.scheduling import SchedulingPolicy
    from quire.interfaces.structured_output import StructuredOutputBackend
    from quire.interfaces.tool_parsing import ToolParser
    from quire.messages import CompletedRequest, EngineOutput, EngineRequest, IntervalStats
    from quire.plugins.registry import Registrar

PROJECT = "quire"

hookspec = HookspecMarker(PROJECT)
hookimpl = HookimplMarker(PROJECT)


@hookspec
def register_checkpoints(registry: Registrar[CheckpointSource]) -> None:
    """Offer checkpoints that the package ships, each under a name for `LLM(NAME)`."""


@hookspec
def register_models(registry: Registrar[type[Model]]) -> None:
    """Offer models, each under its `architectures` name in a Hugging Face config.json."""


@hookspec
def register_attention_backends(registry: Registrar[type[KVBackend]]) -> None:
    """Offer attention backends, each under the name for `--attention-backend`."""


@hookspec
def register_kv_cache_specs(registry: Registrar[type[KVCacheSpec]]) -> None:
    """Offer KV-cache specs: the use of KV blocks by one kind of layer. Models name them."""


@hookspec
def register_quantizations(registry: Registrar[type[Quantization]]) -> None:
    """Offer quantization methods, each under its name in a checkpoint's `quantization_config`."""


@hookspec
def register_samplers(registry: Registrar[type[SamplerStep]]) -> None:
    """Offer sampler steps, each under the name for `--samplers`, with the fields that it reads."""


@hookspec
def register_structured_output(registry: Registrar[type[StructuredOutputBackend]]) -> None:
    """Offer structured-output backends, each under the name for `--structured-output`."""


@hookspec
def register_tool_parsers(registry: Registrar[type[ToolParser]]) -> None:
    """Offer tool-call parsers, each under the name for `--tool-call-parser`."""


@hookspec
def register_reasoning_parsers(registry: Registrar[type[ReasoningParser]]) -> None:
    """Offer reasoning parsers, each under the name for `--reasoning-parser`."""


@hookspec
def register_lora_sources(registry: Registrar[type[LoRASource]]) -> None:
    """Offer LoRA sources, each under the name for `--lora-source`."""


@hookspec
def register_scheduling_policies(registry: Registrar[type[SchedulingPolicy]]) -> None:
    """Offer scheduling policies, each under the name for `--scheduling-policy`."""


@hookspec
def register_kv_stores(registry: Registrar[type[KVStoreScheduler]]) -> None:
    """Offer external KV stores, each under the name for `--kv-store`."""


@hookspec
def register_executors(registry: Registrar[type[Executor]]) -> None:
    """Offer executors, each under the name for `--executor`."""


@hookspec
def register_routes(registry: Registrar[type[HTTPRoute]]) -> None:
    """Offer HTTP routes, each under the name for `--routes`; no other is served."""


@hookspec
def request_received(request: EngineRequest) -> None:
    """A request passed validation and is about to be queued.

    Raise a `quire.errors.RequestError` to refuse it with that message. Any other error fails the
    request as well, as an error of this plugin. A server where all requests fail in this way
    reports that it is not ready.
    """


@hookspec
def request_finished(request: EngineRequest, output: EngineOutput) -> None:
    """A request is finished; `output` is its last output. An error here is only logged."""


@hookspec
def request_completed(record: CompletedRequest) -> None:
    """A request has ended, by whatever cause; `record` has its client, usage and timings.

    Fires after `request_finished`, once a request, in the process that reads the completion. An
    error here is only logged.
    """


@hookspec
def stats_logged(stats: IntervalStats) -> None:
    """Another interval of a server that had work has passed, 10 seconds by default.

    Fires in the server's event loop, so it must not block. An error here is only logged.
    """
