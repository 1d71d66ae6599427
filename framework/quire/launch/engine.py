"""Start-up of a whole engine, and its parts; the core may run in another process."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from quire.compose.choices.sampler_choice import offered_fields, offered_logits_processors
from quire.compose.composition import Composition
from quire.config import ParallelSettings, Settings
from quire.frontend.async_frontend import STALL_LIMIT_S, AsyncFrontend
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.dispatch.engine_client import EngineCoreClient
from quire.frontend.intake.intake import Intake
from quire.frontend.intake.logits_processor_names import LogitsProcessorNames
from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.metrics.engine_facts import EngineFacts
from quire.frontend.metrics.request_observer import RequestObserver
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.lora import LoRASource
from quire.launch.adapters import resolve_adapter
from quire.launch.composing import Composed
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.engine_process.remote_core import RemoteCore
from quire.launch.front_end_parts import FrontEndParts
from quire.launch.parsers import make_thinking
from quire.launch.queue_limits import queue_limits
from quire.launch.served_model import served_model
from quire.launch.starting_engine import StartingEngine, begin_engine
from quire.launch.torch_modules import defer_unused_modules
from quire.messages import AdapterRef, LoadAdapter, Started
from quire.outputs import LoRARequest
from quire.plugins.loading import Plugins
from quire.process.garbage import leave_out_code

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine, in parts; `LLM`, `AsyncEngine` and the server are built on it."""

    settings: Settings
    plugins: Plugins
    composition: Composition
    core: EngineCoreClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    intake: Intake
    completion_parsers: CompletionParsers
    adapters: Mapping[str, AdapterRef]
    lora_sources: Mapping[str, LoRASource]
    is_shared: bool = False  # with other front ends

    @property
    def model_name(self) -> str:
        """Name of the model in requests."""
        return self.settings.model.served_model_name or self.composition.checkpoint.name

    def resolve_adapter(self, adapter: str | LoRARequest | None) -> AdapterRef | None:
        """Return the adapter of a request, None for the base model.

        Raises:
            UnknownModelError: The adapter is not served here.
            AdapterError: Its files are missing, or its source returned no content hash.
        """
        if adapter is None:
            return None
        return resolve_adapter(adapter, self.adapters, self.composition, self.lora_sources)

    @property
    def finished_hooks(self) -> list[RequestHook]:
        """The plugins' `request_finished` hooks."""
        return self.plugins.hooks("request_finished")

    def request_observer(self) -> RequestObserver:
        """Return a new observer, which calls the plugins' `request_completed` hooks."""
        hooks = self.plugins.hooks("request_completed")
        return RequestObserver(self.model_name, hooks, self._facts())

    def _facts(self) -> EngineFacts:
        cache, lora = self.settings.cache, self.settings.lora
        return EngineFacts(
            block_size=self.composition.block_size,
            kv_cache_dtype=cache.kv_cache_dtype,
            has_prefix_cache=cache.enable_prefix_caching,
            gpu_memory_utilization=cache.gpu_memory_utilization,
            max_loras=lora.max_loras if lora.enable_lora else 0,
        )

    def async_frontend(self) -> AsyncFrontend:
        """Run the engine in a thread of its own; after that only the frontend may use it."""
        return AsyncFrontend(
            self.core,
            tokenizer=self.tokenizer,
            intake=self.intake,
            chat_template=self.chat_template,
            completion_parsers=self.completion_parsers,
            model_name=self.model_name,
            adapters=dict(self.adapters),
            max_model_len=self.composition.max_model_len,
            finished_hooks=self.finished_hooks,
            observer=self.request_observer(),
            stall_limit_s=stall_limit(self.settings.parallel),
            request_timeout_s=self.settings.scheduler.request_timeout_s,
            queue_limits=queue_limits(self.settings),
            is_engine_shared=self.is_shared,
            served_model=served_model(self.composition),
        )


def stall_limit(parallel: ParallelSettings) -> float:
    """Return the seconds of a step after which the engine counts as stalled.

    By default they are 60. An operator who sets a longer `step_timeout_s` expects longer steps. By
    default steps may take 300 s before anything is ended, and requests are kept away long before.
    """
    if parallel.stall_limit_s is not None:
        return parallel.stall_limit_s
    if parallel.step_timeout_s == ParallelSettings().step_timeout_s:
        return STALL_LIMIT_S
    return max(STALL_LIMIT_S, parallel.step_timeout_s)


def start_engine(settings: Settings, *, is_serving: bool = False) -> Engine:
    """Start an engine with its workers.

    Args:
        settings: Settings as given by the user.
        is_serving: Whether the engine is for a server. It runs in another process by default, so
            that the event loop never delays a step.

    Raises:
        QuireError: The engine cannot be started; the message says why and what would help.
    """
    return finish_engine(begin_engine(settings, is_serving=is_serving))


def finish_engine(
    starting: StartingEngine, *, owns_process: bool = False, is_shared: bool = False
) -> Engine:
    """Wait until an engine is ready for requests, or start it in this process; return it.

    Args:
        starting: Engine that starts.
        owns_process: Whether this process belongs to quire, and not to a program that uses it.
        is_shared: Whether the engine has other front ends.

    Raises:
        QuireError: The engine cannot be started; the message says why and what would help.
    """
    try:
        engine = _engine(starting, owns_process=owns_process, is_shared=is_shared)
    except BaseException as error:
        starting.close(f"the engine did not start: {error}")
        raise
    logger.info("engine ready after %.2f s", time.perf_counter() - starting.began)
    return engine


def _engine(starting: StartingEngine, *, owns_process: bool, is_shared: bool) -> Engine:
    composed = starting.composed
    parts = FrontEndParts.load(composed)
    core, began = _start_core(composed, starting.process, owns_process)
    try:
        for adapter in parts.adapters.values():  # an unusable adapter fails start-up
            core.control(LoadAdapter(adapter))
        return assembled(composed, parts, core, began, is_shared=is_shared)
    except BaseException:
        core.shutdown()
        raise


def assembled(
    composed: Composed,
    parts: FrontEndParts,
    core: EngineCoreClient,
    began: Started,
    *,
    is_shared: bool = False,
) -> Engine:
    """Return an engine whose core is ready for requests."""
    plugins = composed.plugins
    composition = replace(composed.composition, max_model_len=began.max_model_len)
    intake = Intake(
        composed.tokenizer,
        max_model_len=began.max_model_len,
        vocab_size=composition.description.vocab_size,
        fields=composition.sampler_fields,
        offered_fields=offered_fields(plugins.registries, composition.samplers),
        logits_processors=LogitsProcessorNames(
            {choice.name: choice.entry.capabilities for choice in composition.samplers},
            offered_logits_processors(plugins.registries, composition.samplers),
        ),
        hooks=plugins.hooks("request_received"),
        check_grammar=parts.check_grammar,
        thinking=make_thinking(parts.completion_parsers, composed.tokenizer),
        has_priorities=composition.scheduling_policy.entry.capabilities.reads_priority,
        max_logprobs=composed.settings.sampling.max_logprobs,
        logprobs_mode=composed.settings.sampling.logprobs_mode,
    )
    return Engine(
        settings=composed.settings,
        plugins=plugins,
        composition=composition,
        core=core,
        tokenizer=composed.tokenizer,
        chat_template=composed.chat_template.with_call_ids(parts.completion_parsers.prompt_call_id),
        intake=intake,
        completion_parsers=parts.completion_parsers,
        adapters=parts.adapters,
        lora_sources=parts.lora_sources,
        is_shared=is_shared,
    )


def _start_core(
    composed: Composed, process: EngineStart | None, owns_process: bool
) -> tuple[EngineCoreClient, Started]:
    if process is not None:
        return RemoteCore.of(process)
    if composed.settings.parallel.data_parallel_size > 1:
        from quire.launch.replicas.replica_launch import start_replicas  # needed by few

        return start_replicas(composed)
    from quire.launch.core_startup import start_core  # not needed beside an engine process

    if not owns_process:
        return start_core(composed)
    defer_unused_modules(composed)
    return start_core(composed, before_load=leave_out_code)
