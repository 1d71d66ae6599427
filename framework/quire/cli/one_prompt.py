"""Completion of one prompt, printed while it is generated or at its end."""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from quire.async_engine import AsyncEngine
from quire.cli.completion_printer import CompletionPrinter, print_json, print_output
from quire.cli.progress_line import ProgressLine
from quire.config import Settings
from quire.frontend.chat.parsing.completion_parser import CompletionParser
from quire.frontend.chat.prepared_chat import PreparedChat, read_tools
from quire.outputs import Delta, Prompt
from quire.sampling_params import SamplingParams


def complete_prompt(
    settings: Settings,
    arguments: argparse.Namespace,
    prompt: str,
    params: SamplingParams,
    tools: list[dict[str, Any]] | None,
) -> None:
    """Start an engine, complete a prompt, and print it.

    Args:
        settings: Settings of the engine.
        arguments: Flags of `quire run`.
        prompt: The prompt, or the question to the model.
        params: Sampling parameters.
        tools: Tool definitions in OpenAI's format.

    Raises:
        QuireError: The engine cannot be started, or the request failed.
    """
    with ProgressLine(f"loading {settings.model.model}"):
        engine = AsyncEngine.from_settings(settings)
    with asyncio.Runner() as runner:
        try:
            runner.run(_Request(engine, arguments, prompt, params, tools).complete())
        finally:
            runner.run(engine.shutdown())


class _Request:
    """One prompt with its parameters, and what is printed for it."""

    def __init__(
        self,
        engine: AsyncEngine,
        arguments: argparse.Namespace,
        prompt: str,
        params: SamplingParams,
        tools: list[dict[str, Any]] | None,
    ) -> None:
        self._engine = engine
        self._arguments = arguments
        self._params = params
        self._prompt: Prompt = prompt
        self._chat: PreparedChat | None = None
        frontend = engine.frontend
        if not arguments.raw and frontend.chat_template.exists:
            system = arguments.system
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": prompt})
            parsers = frontend.completion_parsers
            use = read_tools(tools, None, parsers)
            self._chat = PreparedChat.of(
                messages, params, frontend.chat_template, parsers, tools=use
            )
            self._prompt, self._params = self._chat.prompt, self._chat.params

    async def complete(self) -> None:
        """Generate, and print the completions and the statistics."""
        started = time.perf_counter()
        if self._chat is not None:
            await self._engine.frontend.check_formats(self._chat.tools, self._params)
        is_streamed = self._params.n == 1 and not self._arguments.json and sys.stdout.isatty()
        num_tokens = await (self._stream() if is_streamed else self._print_whole())
        if self._arguments.stats:
            _print_stats(self._engine, num_tokens, time.perf_counter() - started)

    async def _stream(self) -> int:
        """Print the completion while it is generated; return its number of tokens."""
        parser, printer, num_tokens = self._parser(), CompletionPrinter(), 0
        reason: str | None = None
        try:
            async for delta in self._deltas():
                num_tokens += len(delta.token_ids)
                reason = delta.finish_reason
                printer.show(parser.feed(delta.text))
            printer.show(parser.close(is_cut=reason != "stop"))
        finally:
            printer.close()
        return num_tokens

    def _parser(self) -> CompletionParser:
        return CompletionParser() if self._chat is None else self._chat.parser()

    def _deltas(self) -> AsyncIterator[Delta]:
        return self._engine.generate(
            self._prompt, self._params, lora_request=self._arguments.adapter
        )

    async def _print_whole(self) -> int:
        output = await self._engine.generate_whole(
            self._prompt, self._params, lora_request=self._arguments.adapter
        )
        if self._chat is not None:
            self._chat.split(output.outputs)
        (print_json if self._arguments.json else print_output)(output)
        return sum(len(completion.token_ids) for completion in output.outputs)


def _print_stats(engine: AsyncEngine, num_tokens: int, seconds: float) -> None:
    rate = num_tokens / seconds
    print(f"\n{num_tokens} tokens in {seconds:.2f} s, {rate:.1f} tokens/s", file=sys.stderr)
    for choice in engine.composition.choices:
        print(f"{choice.role:<26} {choice.name:<20} {choice.entry.source}", file=sys.stderr)
