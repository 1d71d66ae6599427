"""Wire an engine together: the one place that knows every floor.

plan_composition   what would run, without torch
start_engine       the same, running: workers started, weights loaded, cache allocated
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quire.checkpoint import Checkpoint, find_checkpoint
from quire.compose import build_spec, compose
from quire.composition import Choice, Composition
from quire.config import PluginSettings, Settings
from quire.engine.core import EngineCore, NoGrammars
from quire.engine.grammar import GrammarHost
from quire.engine.grammar_pool import GrammarLimits
from quire.engine.kv_cache import KVCacheManager
from quire.engine.kv_plan import fixed_plan, longest_request, plan_kv_cache
from quire.engine.scheduler import Scheduler
from quire.errors import (
    CapacityError,
    GrammarError,
    PluginError,
    SettingsError,
    UnknownModelError,
)
from quire.frontend.answer import AnswerParsers, ParserChoice
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat_template import ChatTemplate
from quire.frontend.intake import Intake, RequestHook
from quire.frontend.thinking import Thinking
from quire.frontend.tokenizer import Tokenizer
from quire.frontend.vocabulary import read_vocabulary
from quire.interfaces.executor import Executor, Worker, WorkerGrid, WorkerLaunch
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.structured_output import Vocabulary
from quire.messages import AdapterRef, WorkerInfo
from quire.outputs import LoRARequest
from quire.plugins import Plugins, load_plugins
from quire.registry import Entry, Registry
from quire.sampling_params import StructuredOutputsParams

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine, in parts; `LLM`, `AsyncEngine` and the server are built on it."""

    settings: Settings
    plugins: Plugins
    composition: Composition
    core: EngineCore
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    intake: Intake
    answer_parsers: AnswerParsers
    adapters: Mapping[str, AdapterRef]

    @property
    def model_name(self) -> str:
        """What requests call the model."""
        return self.settings.model.served_model_name or self.composition.checkpoint.name

    def resolve_adapter(self, adapter: str | LoRARequest | None) -> AdapterRef | None:
        """Return the adapter that a caller means.

        Raises:
            UnknownModelError: It is not offered here.
            AdapterError: Its files are not there.
        """
        if adapter is None:
            return None
        if isinstance(adapter, str):
            if adapter not in self.adapters:
                known = ", ".join(self.adapters) or "none; start with enable_lora and lora_modules"
                raise UnknownModelError(f"there is no adapter {adapter!r} (offered: {known})")
            return self.adapters[adapter]
        if self.composition.lora_source is None:
            raise UnknownModelError("LoRA is off; start with enable_lora=True")
        source = self.plugins.registries.lora_sources.load(self.composition.lora_source.entry)()
        folder = source.resolve(adapter.lora_path)
        return AdapterRef(adapter.lora_name, str(folder), source.content_hash(folder))

    @property
    def finished_hooks(self) -> list[RequestHook]:
        """The plugins' `request_finished`."""
        return self.plugins.hooks("request_finished")

    def async_frontend(self) -> AsyncFrontend:
        """Hand the engine to a thread of its own; from then on only the frontend may use it."""
        return AsyncFrontend(
            self.core,
            tokenizer=self.tokenizer,
            intake=self.intake,
            chat_template=self.chat_template,
            make_answer_parser=self.answer_parsers,
            model_name=self.model_name,
            adapters=dict(self.adapters),
            max_model_len=self.composition.max_model_len,
            finished_hooks=self.finished_hooks,
        )


def plan_composition(settings: Settings) -> Composition:
    """Choose every part of an engine, without starting it.

    Raises:
        QuireError: A part cannot be chosen; the message says which and what would help.
    """
    return _compose(settings, load_plugins(settings.plugins), with_weights=False)[0]


def start_engine(settings: Settings) -> Engine:
    """Start an engine with its workers.

    Raises:
        QuireError: It cannot be started; the message says why and what would help.
    """
    started = time.perf_counter()
    plugins = load_plugins(settings.plugins)
    for record in plugins.failed:
        logger.warning("plugin %s failed to load: %s", record.source, record.error)
    composition, tokenizer, chat_template = _compose(settings, plugins)
    _log_composition(composition)
    parsers = _answer_parsers(composition, plugins)  # imported first: a broken part stops us early
    check_grammar = _grammar_check(composition, plugins)
    executor = _start_executor(settings, composition, plugins)
    try:
        plan = _allocate(settings, composition, plugins, executor)
        composition = replace(composition, max_model_len=plan.max_model_len)
        core = EngineCore(
            Scheduler(settings.scheduler, KVCacheManager(plan), settings.lora.max_loras),
            executor,
            _grammars(settings, composition, tokenizer),
        )
        adapters = _offer_adapters(settings, composition, plugins, core)
    except BaseException:
        executor.shutdown()
        raise
    intake = Intake(
        tokenizer,
        max_model_len=composition.max_model_len,
        vocab_size=composition.description.vocab_size,
        fields=composition.sampler_fields,
        hooks=plugins.hooks("request_received"),
        check_grammar=check_grammar,
        thinking=_thinking(composition, parsers, tokenizer),
    )
    logger.info("ready after %.2f s", time.perf_counter() - started)
    return Engine(
        settings=settings,
        plugins=plugins,
        composition=composition,
        core=core,
        tokenizer=tokenizer,
        chat_template=chat_template,
        intake=intake,
        answer_parsers=parsers,
        adapters=adapters,
    )


def _compose(
    settings: Settings, plugins: Plugins, with_weights: bool = True
) -> tuple[Composition, Tokenizer, ChatTemplate]:
    with_weights = with_weights and settings.model.load_format != "dummy"
    checkpoint = find_checkpoint(settings.model, plugins.registries.checkpoints, with_weights)
    tokenizer = Tokenizer.load(_tokenizer_folder(settings, plugins, checkpoint))
    template = ChatTemplate.load(
        checkpoint.folder, settings.model.chat_template, tokenizer.special_tokens
    )
    return compose(settings, plugins, checkpoint, template.source), tokenizer, template


def _tokenizer_folder(settings: Settings, plugins: Plugins, checkpoint: Checkpoint) -> Path:
    if settings.model.tokenizer is None:
        return checkpoint.folder
    other = Settings.from_options({"model": settings.model.tokenizer}).model
    return find_checkpoint(other, plugins.registries.checkpoints, with_weights=False).folder


def _log_composition(composition: Composition) -> None:
    logger.info(
        "%s on %s in %s: %s",
        composition.checkpoint.name,
        composition.device,
        composition.dtype,
        composition.dtype_why,
    )
    for choice in composition.choices:
        logger.info(
            "%s: %s, from %s (%s)", choice.role, choice.name, choice.entry.source, choice.why
        )


def _start_executor(settings: Settings, composition: Composition, plugins: Plugins) -> Executor:
    executor_class = plugins.registries.executors.load(composition.executor.entry)
    grid = WorkerGrid(tp_size=settings.parallel.tensor_parallel_size)
    return executor_class(
        WorkerLaunch(make=_worker_maker(settings, composition, plugins), grid=grid)
    )


def _worker_maker(
    settings: Settings, composition: Composition, plugins: Plugins
) -> Callable[[int], Worker]:
    def make(rank: int) -> Worker:
        from quire.layers.parallel import SingleDevice  # loads torch
        from quire.worker.worker import ModelWorker

        if settings.parallel.tensor_parallel_size != 1 or rank != 0:
            raise SettingsError("workers that share a layer need a process each")
        return ModelWorker(settings, composition, plugins.registries, SingleDevice())

    return make


def _allocate(
    settings: Settings, composition: Composition, plugins: Plugins, executor: Executor
) -> KVPlan:
    """Load the weights, and plan and allocate the KV cache from what is left."""
    plan = _plan_kv(settings, composition, plugins, executor.start())
    plan = replace(plan, max_model_len=_fitting_length(settings, composition, plan))
    executor.allocate(plan)
    logger.info(
        "KV cache: %d blocks of %d tokens, %.1f MB",
        plan.num_blocks - 1,
        composition.block_size,
        sum(tensor.num_bytes for tensor in plan.tensors) / 1e6,
    )
    return plan


def _fitting_length(settings: Settings, composition: Composition, plan: KVPlan) -> int:
    """Return the longest request that fits the cache and the model.

    Raises:
        CapacityError: The user asks for a longer one.
    """
    wanted = composition.max_model_len
    longest = longest_request(plan, wanted)
    if longest == wanted:
        return wanted
    if settings.model.max_model_len is not None or longest < 2:
        raise CapacityError(
            f"one request of {wanted} tokens does not fit the KV cache of {plan.num_blocks - 1} "
            f"blocks of {composition.block_size} tokens; set max_model_len to at most {longest}, "
            "or give the cache more (kv_cache_memory_bytes, num_kv_blocks)"
        )
    logger.warning(
        "max_model_len is %d, not the model's %d: that is what fits the KV cache", longest, wanted
    )
    return longest


def _plan_kv(
    settings: Settings, composition: Composition, plugins: Plugins, info: WorkerInfo
) -> KVPlan:
    tp_size = settings.parallel.tensor_parallel_size
    specs = [
        build_spec(plugins.registries, composition, layer, tp_size)
        for layer in composition.description.kv_layers
    ]
    if settings.cache.num_kv_blocks is not None:
        return fixed_plan(specs, settings.cache.num_kv_blocks)
    available = settings.cache.kv_cache_memory_bytes or info.available_kv_bytes
    max_num_seqs = settings.scheduler.max_num_seqs
    return plan_kv_cache(specs, available, composition.max_model_len, max_num_seqs)


def _grammars(
    settings: Settings, composition: Composition, tokenizer: Tokenizer
) -> GrammarHost | NoGrammars:
    """Prepare the grammar process; it starts with the first request that needs it."""
    choice = composition.structured_output
    if choice is None:
        return NoGrammars()
    vocab_size = composition.description.vocab_size
    folder = composition.checkpoint.folder
    return GrammarHost(
        lambda: _read_vocabulary(folder, tokenizer, vocab_size),
        backend=choice.name,
        plugins=_with_choice(settings.plugins, choice),
        max_rows=settings.scheduler.max_num_seqs,
        limits=GrammarLimits(timeout_s=settings.parts.grammar_timeout_s),
    )


def _with_choice(settings: PluginSettings, choice: Choice) -> PluginSettings:
    """Let another process choose as we did, should several plugins offer the name."""
    preference = f"{choice.entry.kind.name}:{choice.name}={choice.entry.source.plugin}"
    return replace(settings, prefer=(*settings.prefer, preference))


def _grammar_check(
    composition: Composition, plugins: Plugins
) -> Callable[[StructuredOutputsParams], None] | None:
    """Return what refuses a form early, by name, in the backend that a request chooses."""
    choice = composition.structured_output
    if choice is None:
        return None
    default = plugins.registries.structured_output.load(choice.entry)

    def check(params: StructuredOutputsParams) -> None:
        try:
            registry = plugins.registries.structured_output
            backend = registry.get(params.backend) if params.backend else default
            entry = registry.entry(params.backend) if params.backend else choice.entry
        except PluginError as error:
            raise GrammarError(str(error), param="structured_outputs.backend") from error
        _check_form(params.form, entry)
        backend.check(params)

    return check


def _check_form(form: str, backend: Entry) -> None:
    forms = backend.capabilities.forms
    if form not in forms:
        raise GrammarError(
            f"the {backend.name} backend cannot do the form {form!r}; it has "
            f"{', '.join(sorted(forms))}"
        )


def _read_vocabulary(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    from tokenizers import Tokenizer as FastTokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise GrammarError(f"grammars need a fast tokenizer, and {folder} has no tokenizer.json")
    return read_vocabulary(FastTokenizer.from_file(str(path)), tokenizer.eos_token_ids, vocab_size)


def _answer_parsers(composition: Composition, plugins: Plugins) -> AnswerParsers:
    registries = plugins.registries
    return AnswerParsers(
        _load_parser(registries.reasoning_parsers, composition.reasoning_parser),
        _load_parser(registries.tool_parsers, composition.tool_parser),
    )


def _thinking(
    composition: Composition, parsers: AnswerParsers, tokenizer: Tokenizer
) -> Thinking | None:
    choice = composition.reasoning_parser
    if choice is None or parsers.reasoning is None:
        return None
    return Thinking(parsers.reasoning, choice.entry.capabilities.end_marker, tokenizer)


def _load_parser(registry: Registry[Any], choice: Choice | None) -> ParserChoice[Any] | None:
    if choice is None:
        return None
    return ParserChoice(registry.load(choice.entry), choice.entry.source)


def _offer_adapters(
    settings: Settings, composition: Composition, plugins: Plugins, core: EngineCore
) -> dict[str, AdapterRef]:
    """Find the adapters that the user names and those that ship with the checkpoint, and load them.

    What cannot be used stops start-up here, rather than a request later.

    Raises:
        AdapterError: An adapter is missing, broken, or made for another model.
    """
    if composition.lora_source is None:
        return {}
    source = plugins.registries.lora_sources.load(composition.lora_source.entry)()
    shipped = composition.checkpoint.adapters
    wanted = {name: str(path) for name, path in shipped.items()}
    for module in settings.lora.lora_modules:
        name, _, path = module.partition("=")
        wanted[name] = path or wanted.get(name, name)
    offered = {}
    for name, path in wanted.items():
        folder = source.resolve(path)
        offered[name] = AdapterRef(name, str(folder), source.content_hash(folder))
        core.control("load_adapter", offered[name])
    return offered
