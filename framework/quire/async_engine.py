"""`AsyncEngine`: the engine for Python programs with an event loop; answers come as a stream."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

from quire.config import DEFAULT_MODEL, Settings
from quire.frontend.chat.completion_parser import parse_completion
from quire.launch import Engine, start_engine
from quire.messages import EngineStats, ResetPrefixCache
from quire.outputs import Delta, Messages, Prompt, RequestOutput
from quire.sampling_params import SamplingParams


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

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and completion together, at most: what fits the model and its cache."""
        return self.frontend.max_model_len

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
            RequestError: The request is wrong or failed; its cause is what a plugin raised.
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
            RequestError: The request is wrong or failed; its cause is what a plugin raised, and
                its `output` what was generated before.
            EngineDeadError: The engine stopped.
        """
        text = self.frontend.render_chat(messages, tools)
        params = sampling_params or SamplingParams()
        prompt = {"prompt": text, "add_special_tokens": False}
        result = await self.frontend.generate_whole(
            prompt, params, adapter=lora_request, priority=priority, timeout_s=timeout_s
        )
        for output in result.outputs:
            parser = self.frontend.make_completion_parser(text, with_tools=bool(tools))
            parse_completion(output, parser)
        return result

    @property
    def stats(self) -> EngineStats:
        """A few numbers about the engine, after its last step."""
        return self.frontend.stats

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, so that every later prompt is computed; what runs goes on.

        Raises:
            EngineDeadError: The engine stopped.
        """
        await self.frontend.control(ResetPrefixCache())

    async def shutdown(self, timeout_s: float = 0.0) -> None:
        """Let running requests finish for so long, then end them and stop the engine."""
        await self.frontend.shutdown(timeout_s)
