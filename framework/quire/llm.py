"""`LLM`: the engine for Python programs that generate completions for lists of prompts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from quire.compose.composition import Composition
from quire.config import DEFAULT_MODEL, Settings
from quire.errors import EngineDeadError, InvalidRequestError, PromptsError, QuireError
from quire.frontend.chat.prepared_chat import PreparedChat, read_tools
from quire.frontend.chat.tools.format_checks import check_formats
from quire.frontend.offline_frontend import (
    MAX_IN_FLIGHT,
    Finish,
    OfflineFrontend,
    Outcome,
    Params,
    for_each,
)
from quire.frontend.text.tokenizer import Tokenizer
from quire.launch import Engine, start_engine
from quire.messages import AdapterRef, EngineStats, LoadAdapter, ResetPrefixCache
from quire.outputs import LoRARequest, Messages, Prompt, RequestOutput
from quire.sampling_params import BeamSearchParams, SamplingParams

Adapter = str | LoRARequest | None
T = TypeVar("T")
R = TypeVar("R")


class LLM:
    """An engine for lists of prompts; in this process, unless `engine_process=True`.

    Any thread may call it; calls of several threads run one after another.

    Args:
        model: A folder, a hub id, or a checkpoint that a plugin ships.
        options: Options of `quire serve`, with underscores: `max_num_seqs=8`.

    Raises:
        QuireError: The engine cannot be started; the message contains the reason and a remedy.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self._attach(start_engine(Settings.from_options({"model": model} | options)))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Build an engine from a settings object; raises as the constructor does."""
        return cls.from_engine(start_engine(settings))

    @classmethod
    def from_engine(cls, engine: Engine) -> Self:
        """Use an engine that was started already, which is closed with this object."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    def _attach(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._known_adapters = set(engine.adapters.values())
        self._batch = OfflineFrontend(
            engine.core,
            engine.tokenizer,
            engine.intake,
            finished_hooks=engine.finished_hooks,
            observer=engine.request_observer(),
            max_in_flight=min(MAX_IN_FLIGHT, engine.settings.scheduler.max_num_queued),
        )

    @property
    def composition(self) -> Composition:
        """The chosen plugin of each part, with the reason for the choice."""
        return self._running.composition

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens, prompt and completion together, that fits model and cache."""
        return self._running.composition.max_model_len

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: Literal[False] = False,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: Literal[True],
        use_tqdm: bool = False,
    ) -> list[Outcome]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: bool = False,
        use_tqdm: bool = False,
    ) -> list[RequestOutput] | list[Outcome]:
        """Generate completions for all prompts; they are scheduled together.

        Args:
            prompts: Text, token ids, or a dict with `prompt` or `prompt_token_ids`; or a list of
                these.
            sampling_params: Sampling parameters, for all prompts or one for each.
            lora_request: An adapter's name or a `LoRARequest`, for all prompts or one for each.
            priority: Priority, smaller first; needs the scheduling policy `priority`. For all
                prompts or one for each.
            timeout_s: Seconds that each prompt may take, waiting included; for all prompts or one
                for each. One that takes longer fails with a `RequestTimeoutError`.
            return_errors: Return the error of an invalid or failed prompt in place of its output,
                instead of raising it.
            use_tqdm: Show a progress bar, on a terminal.

        Raises:
            PromptsError: Prompts of a list are invalid, and none ran; or some failed, and the
                others finished. Its `outputs` and `errors` contain both.
            RequestError: The prompt is not in a list, and is invalid or failed.
            InvalidRequestError: The number of entries of an argument differs from the number of
                prompts.
            EngineDeadError: The engine has died or was closed, before or during the call.
        """
        return self._run(
            _as_list(prompts),
            sampling_params,
            lora_request,
            priority=priority,
            timeout_s=timeout_s,
            return_errors=return_errors,
            use_progress=use_tqdm,
            is_one=_is_one_prompt(prompts),
        )

    @overload
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        return_errors: Literal[False] = False,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]: ...

    @overload
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        return_errors: Literal[True],
        use_tqdm: bool = False,
    ) -> list[Outcome]: ...

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        return_errors: bool = False,
        use_tqdm: bool = False,
    ) -> list[RequestOutput] | list[Outcome]:
        """Generate the next message of each conversation; reasoning and tool calls are split off.

        Args:
            messages: One conversation in OpenAI's format, or a list of them.
            sampling_params: Sampling parameters, for all conversations or one for each.
            tools: Tool definitions in OpenAI's format, for all; or a list of such lists.
            tool_choice: Choice among the tools in OpenAI's format, for all; None: auto.
            lora_request: Adapter, for all or one for each; see `generate`.
            priority: Priority, for all or one for each; see `generate`.
            timeout_s: Timeout, for all or one for each; see `generate`.
            chat_template_kwargs: Additional variables for the chat template.
            return_errors: Return the error of a conversation in place of its output; see
                `generate`.
            use_tqdm: Show a progress bar, on a terminal.

        Raises:
            PromptsError: Conversations of a list are invalid or failed; see `generate`.
            RequestError: The conversation is not in a list, and is invalid or failed.
            InvalidRequestError: The number of entries of an argument differs from the number of
                conversations.
            EngineDeadError: The engine has died or was closed, before or during the call.
        """
        conversations = _as_conversations(messages)
        engine = self._running
        each_tools = _tools_for_each(tools, len(conversations))
        read = partial(read_tools, choice=tool_choice, parsers=engine.completion_parsers)
        lists = {id(each): each for each in each_tools}  # each once, since its grammar takes long
        uses = {key: _attempt(read, each) for key, each in lists.items()}
        given = SamplingParams() if sampling_params is None else sampling_params
        each_params = [*for_each(given, len(conversations), "sampling_params")]
        chats: dict[int, PreparedChat] = {}

        def prepare(index: int) -> Prompt:
            use = uses[id(each_tools[index])]
            if isinstance(use, QuireError):
                raise use
            chat = PreparedChat.of(
                conversations[index],
                each_params[index],
                engine.chat_template,
                engine.completion_parsers,
                tools=use,
                template_kwargs=chat_template_kwargs,
            )
            check_formats(chat.tools.formats, chat.params, engine.intake)
            chats[index], each_params[index] = chat, chat.params
            return chat.prompt

        prompts = [_attempt(prepare, index) for index in range(len(conversations))]
        return self._run(
            prompts,
            each_params,
            lora_request,
            priority=priority,
            timeout_s=timeout_s,
            return_errors=return_errors,
            finish=lambda index, result: chats[index].split(result.outputs),
            use_progress=use_tqdm,
            is_one=_is_one_conversation(messages),
        )

    @overload
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: Literal[False] = False,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]: ...

    @overload
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: Literal[True],
        use_tqdm: bool = False,
    ) -> list[Outcome]: ...

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        lora_request: Adapter | Sequence[Adapter] = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: bool = False,
        use_tqdm: bool = False,
    ) -> list[RequestOutput] | list[Outcome]:
        """Search for the completions with the largest log probabilities.

        The outputs of a prompt are the completions that its search found, the best first, each with
        its `cumulative_logprob`. They are those of transformers' beam search.

        Args:
            prompts: Prompts as for `generate`.
            params: Parameters of the search, for all prompts or one for each.
            lora_request: Adapter, for all or one for each; see `generate`.
            priority: Priority, for all or one for each; see `generate`.
            timeout_s: Timeout, for all or one for each; see `generate`.
            return_errors: Return the error of a prompt in place of its output; see `generate`.
            use_tqdm: Show a progress bar, on a terminal.

        Raises:
            PromptsError: Prompts of a list are invalid or failed; see `generate`.
            RequestError: The prompt is not in a list, and is invalid or failed.
            InvalidRequestError: The number of entries of an argument differs from the number of
                prompts.
            EngineDeadError: The engine has died or was closed, before or during the call.
        """
        return self._run(
            _as_list(prompts),
            params,
            lora_request,
            priority=priority,
            timeout_s=timeout_s,
            return_errors=return_errors,
            use_progress=use_tqdm,
            is_one=_is_one_prompt(prompts),
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template, which `chat` needs."""
        return self._running.chat_template.exists

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters that requests can use."""
        return list(self._running.adapters)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._running.tokenizer

    def stats(self) -> EngineStats:
        """Return the current statistics of the engine.

        While another thread generates, they are those after its last step. A replica that hangs is
        not waited for; it is marked as silent.
        """
        return self._batch.core.stats()

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache, so that every later prompt is computed.

        Raises:
            EngineDeadError: The engine was closed or has died.
        """
        self._batch.core.control(ResetPrefixCache())

    def close(self) -> None:
        """Stop the engine and free its memory. May be called twice, from any thread.

        It waits for the running step, not for the running call: a call that runs or waits in
        another thread fails with an EngineDeadError.
        """
        self._engine = None
        self._batch.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise EngineDeadError("this LLM was closed")
        return self._engine

    def _run(
        self,
        prompts: Sequence[Prompt | QuireError],
        params: Params | Sequence[Params] | None,
        adapters: Adapter | Sequence[Adapter],
        *,
        priority: Sequence[int] | int,
        timeout_s: Sequence[float | None] | float | None,
        return_errors: bool,
        use_progress: bool,
        is_one: bool,
        finish: Finish | None = None,
    ) -> list[Outcome]:
        """Generate; if the only prompt is not in a list, raise its error and no PromptsError."""
        try:
            return self._batch.generate(
                prompts,
                params if params is not None else SamplingParams(),
                adapters=self._resolve(adapters, len(prompts)),
                priority=priority,
                timeout_s=timeout_s,
                return_errors=return_errors,
                finish=finish,
                use_progress=use_progress,
            )
        except PromptsError as error:
            if not is_one:
                raise
            failure = error.errors[0]
        raise failure

    def _resolve(
        self, adapters: Adapter | Sequence[Adapter], num_prompts: int
    ) -> list[AdapterRef | QuireError | None]:
        """Return the adapter of each prompt, or the error; each adapter is resolved once."""
        each: Sequence[Adapter]
        if isinstance(adapters, str | LoRARequest | None):
            each = [adapters] * num_prompts
        else:
            each = adapters
        # Each adapter once, since resolving hashes its files.
        found = {adapter: _attempt(self._resolve_one, adapter) for adapter in set(each)}
        return [found[adapter] for adapter in each]

    def _resolve_one(self, adapter: Adapter) -> AdapterRef | None:
        """Resolve an adapter; one that a `LoRARequest` names for the first time is loaded."""
        ref = self._running.resolve_adapter(adapter)
        if ref is not None and ref not in self._known_adapters:
            self._batch.core.control(LoadAdapter(ref))
            self._known_adapters.add(ref)
        return ref


def _attempt(call: Callable[[T], R], argument: T) -> R | QuireError:
    """Return the result of a call for one prompt, or its error.

    If the engine is dead, the following `generate` call raises the error.
    """
    try:
        return call(argument)
    except QuireError as error:
        return error


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Return the prompts of a call.

    Raises:
        InvalidRequestError: The argument has the wrong type.
    """
    if not isinstance(prompts, str | dict | Sequence):
        raise InvalidRequestError(
            "prompts must be text, token ids, a dict, or a list of these; got "
            f"{type(prompts).__name__}",
            param="prompts",
        )
    return [prompts] if _is_one_prompt(prompts) else prompts  # type: ignore[list-item, return-value]


def _is_one_prompt(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Return whether the argument is one prompt: a list of ids is, any other list is several."""
    return isinstance(prompts, str | dict) or (bool(prompts) and isinstance(prompts[0], int))


def _as_conversations(messages: Messages | Sequence[Messages]) -> Sequence[Messages]:
    return [messages] if _is_one_conversation(messages) else messages  # type: ignore[list-item, return-value]


def _is_one_conversation(messages: Messages | Sequence[Messages]) -> bool:
    return bool(messages) and isinstance(messages[0], Mapping)


def _tools_for_each(
    tools: Any, num_conversations: int
) -> Sequence[Sequence[Mapping[str, Any]] | None]:
    """Return the tools of each conversation; what is no list of lists is checked as one list."""
    is_list = isinstance(tools, Sequence) and not isinstance(tools, str)
    if not is_list or not tools or not isinstance(tools[0], Sequence | None):
        return [tools] * num_conversations
    if len(tools) != num_conversations:
        raise InvalidRequestError(
            f"tools has {len(tools)} lists for {num_conversations} conversations", param="tools"
        )
    return list(tools)
