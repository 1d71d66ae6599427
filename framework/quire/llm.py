"""`LLM` and `AsyncEngine`: the engine for Python programs, offline and in an event loop."""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from quire.composition import Composition
from quire.config import DEFAULT_MODEL, Settings
from quire.errors import EngineDeadError, InvalidRequestError
from quire.frontend.answer import AnswerParser
from quire.frontend.batch import MAX_IN_FLIGHT, BatchFrontend
from quire.frontend.tokenizer import Tokenizer
from quire.launch import Engine, start_engine
from quire.messages import AdapterRef, EngineStats, ResetPrefixCache
from quire.outputs import (
    CompletionOutput,
    Delta,
    LoRARequest,
    Prompt,
    RequestOutput,
    ToolCall,
)
from quire.sampling_params import SamplingParams

Adapter = str | LoRARequest | None
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """An engine for lists of prompts; in this process, unless `engine_process=True`.

    Args:
        model: A folder, a hub id, or a checkpoint that a plugin ships.
        options: Every option of `quire serve`, with underscores: `max_num_seqs=8`.

    Raises:
        QuireError: The engine cannot be started; the message says why and what would help.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self._own(start_engine(Settings.from_options({"model": model} | options)))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Build one from a whole tree of settings; raises as the constructor does."""
        llm = cls.__new__(cls)
        llm._own(start_engine(settings))
        return llm

    def _own(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._batch = BatchFrontend(
            engine.core,
            engine.tokenizer,
            engine.intake,
            finished_hooks=engine.finished_hooks,
            max_in_flight=min(MAX_IN_FLIGHT, engine.settings.scheduler.max_num_queued),
        )

    @property
    def composition(self) -> Composition:
        """Which plugin serves which part, and why."""
        return self._running.composition

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Continue each prompt; all of them are one batch.

        Args:
            prompts: Text, token ids, or a dict with `prompt` or `prompt_token_ids`; or a list.
            sampling_params: For all prompts, or one for each.
            lora_request: An adapter's name or a `LoRARequest`, for all prompts or one for each.
            priority: Smaller goes first, with the scheduling policy `priority`; for all prompts or
                one for each.
            timeout_s: Seconds that each prompt may take, all its waiting included; for all prompts
                or one for each. One that takes longer ends the call with a `RequestTimeoutError`.
            use_tqdm: Show a progress bar, on a terminal.

        Raises:
            RequestError: A prompt or its parameters are wrong, or a request failed.
            EngineDeadError: The engine was closed.
        """
        several = _as_list(prompts)
        return self._run(
            several, sampling_params, lora_request, use_tqdm, priority=priority, timeout_s=timeout_s
        )

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answer each conversation; thinking and tool calls are split from the text.

        Args:
            messages: One conversation in OpenAI's shape, or a list of them.
            sampling_params: For all, or one for each.
            tools: Tool definitions in OpenAI's shape, for all; or a list of such lists.
            lora_request: For all, or one for each.
            priority: For all, or one for each; see `generate`.
            timeout_s: For all, or one for each; see `generate`.
            chat_template_kwargs: Further names for the chat template.
            use_tqdm: Show a progress bar, on a terminal.

        Raises:
            RequestError: A conversation or its parameters are wrong, or a request failed.
            EngineDeadError: The engine was closed.
        """
        conversations = _as_conversations(messages)
        engine = self._running
        each_tools = _tools_for_each(tools, len(conversations))
        texts = [
            engine.chat_template.render(conversation, offered, chat_template_kwargs)
            for conversation, offered in zip(conversations, each_tools, strict=True)
        ]
        prompts: list[Prompt] = [{"prompt": t, "add_special_tokens": False} for t in texts]
        results = self._run(
            prompts, sampling_params, lora_request, use_tqdm, priority=priority, timeout_s=timeout_s
        )
        for text, offered, result in zip(texts, each_tools, results, strict=True):
            for output in result.outputs:
                parser = engine.answer_parsers(text, with_tools=bool(offered))
                split_answer(output, parser)
        return results

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self._running.chat_template.exists

    @property
    def adapters(self) -> list[str]:
        """The adapters that requests can name."""
        return list(self._running.adapters)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._running.tokenizer

    def stats(self) -> EngineStats:
        """Return a few numbers about the engine, as they are now."""
        return self._running.core.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, so that every later prompt is computed.

        Returns:
            Whether all are forgotten: False if running requests still use some.

        Raises:
            EngineDeadError: The engine was closed or has died.
        """
        return bool(self._running.core.control(ResetPrefixCache()))

    def close(self) -> None:
        """Stop the engine and give its memory back. May be called twice."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.core.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        story: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise EngineDeadError("this LLM was closed")
        return self._engine

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        adapters: Adapter | Sequence[Adapter],
        use_tqdm: bool,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
    ) -> list[RequestOutput]:
        resolve = self._running.resolve_adapter
        refs: AdapterRef | list[AdapterRef | None] | None
        if isinstance(adapters, str | LoRARequest | None):
            refs = resolve(adapters)
        else:
            found = {adapter: resolve(adapter) for adapter in set(adapters)}  # hashes files
            refs = [found[adapter] for adapter in adapters]
        chosen = params if params is not None else SamplingParams()
        return self._batch.generate(
            prompts,
            chosen,
            adapters=refs,
            priority=priority,
            timeout_s=timeout_s,
            use_progress=use_tqdm,
        )


class AsyncEngine:
    """An engine for an event loop; its steps run in a thread of their own.

    Args:
        model: A folder, a hub id, or a checkpoint that a plugin ships.
        options: Every option of `quire serve`, with underscores.

    Raises:
        QuireError: The engine cannot be started.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self._own(start_engine(Settings.from_options({"model": model} | options)))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Build one from a whole tree of settings; raises as the constructor does."""
        engine = cls.__new__(cls)
        engine._own(start_engine(settings))
        return engine

    def _own(self, engine: Engine) -> None:
        self.composition = engine.composition
        self.frontend = engine.async_frontend()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Delta]:
        """Continue a prompt, piece by piece; leaving the loop early aborts the request.

        Args:
            prompt: Text, token ids, or a dict with `prompt` or `prompt_token_ids`.
            sampling_params: How to generate.
            lora_request: Name of a LoRA adapter.
            priority: Smaller goes first, with the scheduling policy `priority`.
            timeout_s: Seconds that it may take; then it fails with a `RequestTimeoutError`.

        Raises:
            RequestError: The request is wrong or failed.
            EngineDeadError: The engine stopped.
        """
        params = sampling_params or SamplingParams()
        deltas = self.frontend.generate(
            prompt, params, adapter=lora_request, priority=priority, timeout_s=timeout_s
        )
        async for delta in deltas:
            yield delta

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        lora_request: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """Answer a conversation; thinking and tool calls are split from the text.

        Raises:
            RequestError: The request is wrong or failed.
            EngineDeadError: The engine stopped.
        """
        text = self.frontend.render_chat(messages, tools)
        params = sampling_params or SamplingParams()
        prompt = {"prompt": text, "add_special_tokens": False}
        result = await self.frontend.generate_whole(
            prompt, params, adapter=lora_request, priority=priority, timeout_s=timeout_s
        )
        for output in result.outputs:
            parser = self.frontend.make_answer_parser(text, with_tools=bool(tools))
            split_answer(output, parser)
        return result

    @property
    def stats(self) -> EngineStats:
        """A few numbers about the engine, after its last step."""
        return self.frontend.stats

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False if running requests still use some.

        Raises:
            EngineDeadError: The engine stopped.
        """
        return bool(await self.frontend.control(ResetPrefixCache()))

    async def shutdown(self, timeout_s: float = 0.0) -> None:
        """Let running requests finish for so long, then end them and stop the engine."""
        await self.frontend.shutdown(timeout_s)


def split_answer(output: CompletionOutput, parser: AnswerParser) -> None:
    """Move thinking and tool calls of a whole answer out of its text, in place."""
    parsed = parser.read_whole(output.text)
    output.text = parsed.text
    output.reasoning = parsed.reasoning
    output.tool_calls = [
        ToolCall(f"call_{index}", name, arguments)
        for index, (name, arguments) in enumerate(parsed.calls)
    ]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Tell one prompt from several: a list of ids is one, a list of anything else several."""
    is_one = isinstance(prompts, str | dict) or (bool(prompts) and isinstance(prompts[0], int))
    return [prompts] if is_one else prompts  # type: ignore[list-item, return-value]


def _as_conversations(messages: Messages | Sequence[Messages]) -> Sequence[Messages]:
    is_one = bool(messages) and isinstance(messages[0], Mapping)
    return [messages] if is_one else messages  # type: ignore[list-item, return-value]


def _tools_for_each(
    tools: Any, num_conversations: int
) -> Sequence[Sequence[Mapping[str, Any]] | None]:
    is_nested = bool(tools) and not isinstance(tools[0], Mapping)
    if not is_nested:
        return [tools] * num_conversations
    if len(tools) != num_conversations:
        raise InvalidRequestError(
            f"tools has {len(tools)} lists for {num_conversations} conversations", param="tools"
        )
    return list(tools)
