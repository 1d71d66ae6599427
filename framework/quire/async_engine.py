"""`AsyncEngine`: the engine for asyncio programs; completions are streamed."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

from quire.config import DEFAULT_MODEL, Settings
from quire.frontend.chat.prepared_chat import PreparedChat, read_tools
from quire.frontend.work_lanes import INLINE_SIZE
from quire.launch import Engine, start_engine
from quire.messages import EngineStats, KVEventBatch, ResetPrefixCache
from quire.outputs import Delta, Messages, Prompt, RequestOutput
from quire.sampling_params import BeamSearchParams, SamplingParams


class AsyncEngine:
    """An engine for an event loop; its steps run in a thread of their own.

    Args:
        model: A folder, a hub id, or a checkpoint that a plugin ships.
        options: Every option of `quire serve`, with underscores.

    Raises:
        QuireError: The engine cannot be started.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self._attach(start_engine(Settings.from_options({"model": model} | options)))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Build an engine from a settings object; raises as the constructor does."""
        engine = cls.__new__(cls)
        engine._attach(start_engine(settings))
        return engine

    def _attach(self, engine: Engine) -> None:
        self.composition = engine.composition
        self.frontend = engine.async_frontend()

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens, prompt and completion together, that fits model and cache."""
        return self.frontend.max_model_len

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Delta]:
        """Generate a completion as a stream of deltas; leaving the loop early aborts the request.

        Args:
            prompt: Text, token ids, or a dict with `prompt` or `prompt_token_ids`.
            sampling_params: Sampling parameters.
            lora_request: Name of a LoRA adapter.
            priority: Priority, smaller first; needs the scheduling policy `priority`.
            timeout_s: Seconds after which the request fails with a `RequestTimeoutError`.

        Raises:
            RequestError: The request is invalid or failed; its cause is what a plugin raised.
            EngineDeadError: The engine stopped.
        """
        params = sampling_params or SamplingParams()
        return self.frontend.generate(
            prompt, params, adapter=lora_request, priority=priority, timeout_s=timeout_s
        )

    async def generate_whole(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """Generate all completions of a prompt, and return them once all have ended.

        The arguments are those of `generate`; `best_of` needs this method.

        Raises:
            RequestError: The request is invalid or failed; its cause is what a plugin raised, and
                its `output` what was generated before.
            EngineDeadError: The engine stopped.
        """
        params = sampling_params or SamplingParams()
        return await self.frontend.generate_whole(
            prompt, params, adapter=lora_request, priority=priority, timeout_s=timeout_s
        )

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        lora_request: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """Generate the next message of a conversation; reasoning and tool calls are split off.

        Args:
            messages: The conversation in OpenAI's format.
            sampling_params: Sampling parameters.
            tools: Tool definitions in OpenAI's format.
            tool_choice: Choice among the tools in OpenAI's format; None: auto.
            lora_request: Name of a LoRA adapter.
            priority: Priority; see `generate`.
            timeout_s: Timeout; see `generate`.

        Raises:
            RequestError: The request is invalid or failed; its cause is what a plugin raised, and
                its `output` what was generated before.
            EngineDeadError: The engine stopped.
        """
        params = sampling_params or SamplingParams()
        prepare = partial(self._prepared, messages, params, tools, tool_choice)
        # The size of a conversation is not known before.
        chat = await self.frontend.lanes.run(INLINE_SIZE + 1, prepare)
        await self.frontend.check_formats(chat.tools, chat.params)
        result = await self.frontend.generate_whole(
            chat.prompt,
            chat.params,
            adapter=lora_request,
            priority=priority,
            timeout_s=timeout_s,
        )
        chat.split(result.outputs)
        return result

    def _prepared(
        self,
        messages: Messages,
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None,
        tool_choice: str | Mapping[str, Any] | None,
    ) -> PreparedChat:
        template, parsers = self.frontend.chat_template, self.frontend.completion_parsers
        use = read_tools(tools, tool_choice, parsers)
        return PreparedChat.of(messages, params, template, parsers, tools=use)

    async def beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        *,
        lora_request: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """Search for the completions with the largest log probabilities; the best is the first.

        Args:
            prompt: Text, token ids, or a dict with `prompt` or `prompt_token_ids`.
            params: Parameters of the search.
            lora_request: Name of a LoRA adapter.
            priority: Priority, smaller first; needs the scheduling policy `priority`.
            timeout_s: Seconds after which the request fails with a `RequestTimeoutError`.

        Raises:
            RequestError: The request is invalid or failed.
            EngineDeadError: The engine stopped.
        """
        return await self.frontend.generate_whole(
            prompt, params, adapter=lora_request, priority=priority, timeout_s=timeout_s
        )

    @property
    def stats(self) -> EngineStats:
        """Statistics of the engine after its last step."""
        return self.frontend.dispatch.stats

    async def reset_prefix_cache(self) -> None:
        """Clear the prefix cache; running requests continue, later prompts are computed.

        Raises:
            EngineDeadError: The engine stopped.
        """
        await self.frontend.controls.call(ResetPrefixCache())

    def kv_events(self) -> AsyncIterator[KVEventBatch]:
        """Changes of the prefix cache, a batch for each step that changed it.

        The first batches are a snapshot of each replica. A reader that falls far behind gets
        snapshots again. `CachedBlocks` keeps the blocks that result.

        Raises:
            RefusedError: The engine was started without `kv_events`.
            EngineDeadError: The engine stopped.
        """
        return self.frontend.dispatch.kv_events.read()

    async def shutdown(self, timeout_s: float = 0.0) -> None:
        """Wait up to `timeout_s` for running requests, abort the rest and stop the engine."""
        await self.frontend.shutdown(timeout_s)
