"""`LLM`: the engine for Python programs that have lists of prompts and wait for the answers."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from quire.composition import Composition
from quire.config import DEFAULT_MODEL, Settings
from quire.errors import EngineDeadError, InvalidRequestError
from quire.frontend.answer import split_answer
from quire.frontend.batch import MAX_IN_FLIGHT, BatchFrontend
from quire.frontend.tokenizer import Tokenizer
from quire.launch import Engine, start_engine
from quire.messages import AdapterRef, EngineStats, ResetPrefixCache
from quire.outputs import LoRARequest, Messages, Prompt, RequestOutput
from quire.sampling_params import SamplingParams

Adapter = str | LoRARequest | None


class LLM:
    """An engine for lists of prompts; in this process, unless `engine_process=True`.

    Any thread may call it; calls of several threads take turns, each with the engine to itself.

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
            EngineDeadError: The engine was closed, perhaps while this ran, or has died.
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
            EngineDeadError: The engine was closed, perhaps while this ran, or has died.
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
        return self._batch.stats()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, so that every later prompt is computed.

        Raises:
            EngineDeadError: The engine was closed or has died.
        """
        self._batch.control(ResetPrefixCache())

    def close(self) -> None:
        """Stop the engine and give its memory back. May be called twice, from any thread.

        It waits for a step, not for a call: one that runs in another thread, or waits for its
        turn, ends with an EngineDeadError.
        """
        self._engine = None
        self._batch.close()

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
