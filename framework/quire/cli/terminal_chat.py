"""A conversation in the terminal: the input is read line by line, completions are streamed."""

import asyncio
import sys
from typing import Any

from quire.async_engine import AsyncEngine
from quire.cli.completion_printer import CompletionPrinter
from quire.cli.progress_line import ProgressLine
from quire.config import Settings
from quire.errors import RequestError
from quire.frontend.chat.prepared_chat import PreparedChat
from quire.sampling_params import SamplingParams


def converse(
    settings: Settings, params: SamplingParams, system: str | None, adapter: str | None
) -> None:
    """Start an engine and talk until the end of the input.

    Args:
        settings: Settings of the engine.
        params: Sampling parameters of each completion.
        system: System message, if there is one.
        adapter: Name of the LoRA adapter; None: the base model.

    Raises:
        QuireError: The engine cannot be started, or died.
    """
    with ProgressLine(f"loading {settings.model.model}"):
        engine = AsyncEngine.from_settings(settings)
    with asyncio.Runner() as runner:
        try:
            _take_turns(runner, engine, params, system, adapter)
        finally:
            runner.run(engine.shutdown())


def _take_turns(
    runner: asyncio.Runner,
    engine: AsyncEngine,
    params: SamplingParams,
    system: str | None,
    adapter: str | None,
) -> None:
    """Take turns; the input is read outside of the event loop, where Ctrl-C ends it at once."""
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": system})
    if sys.stdin.isatty():
        print("Type a message; an empty line or Ctrl-D ends the conversation.", file=sys.stderr)
    while question := _read_line():
        messages.append({"role": "user", "content": question})
        try:
            completion = runner.run(_stream_completion(engine, messages, params, adapter))
        except RequestError as error:
            print(f"[{error.code}] {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": completion})


def _read_line() -> str:
    """Return the next message; only a terminal is asked for it."""
    is_asked = sys.stdin.isatty()
    try:
        return input("> " if is_asked else "").strip()
    except EOFError:
        if is_asked:
            print()  # the shell's prompt begins a line of its own
        return ""


async def _stream_completion(
    engine: AsyncEngine, messages: list[dict[str, Any]], params: SamplingParams, adapter: str | None
) -> str:
    """Print a completion piece by piece; return its text without the reasoning."""
    frontend = engine.frontend
    chat = PreparedChat.of(messages, params, frontend.chat_template, frontend.completion_parsers)
    parser, printer = chat.parser(), CompletionPrinter()
    try:
        async for delta in engine.generate(chat.prompt, chat.params, lora_request=adapter):
            printer.show(parser.feed(delta.text))
        printer.show(parser.close())
    finally:
        printer.close()
    return printer.text
