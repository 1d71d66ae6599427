"""`quire chat [MODEL]`: a conversation in the terminal, with streamed completions."""

import argparse
import asyncio
import sys
from typing import Any

from quire.async_engine import AsyncEngine
from quire.cli.command_parser import CommandParser
from quire.cli.completion_printer import CompletionPrinter
from quire.cli.options import add_model_options
from quire.cli.progress_line import ProgressLine
from quire.cli.sampling_flags import add_generation_flags, read_sampling_params
from quire.cli.setting_values import read_settings
from quire.errors import RequestError
from quire.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 1024


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    add_generation_flags(parser)
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run a conversation until the end of the input."""
    params = read_sampling_params(arguments, DEFAULT_MAX_TOKENS)
    settings = read_settings(arguments, enable_lora=True if arguments.adapter else None)
    with ProgressLine(f"loading {settings.model.model}"):
        engine = AsyncEngine.from_settings(settings)
    with asyncio.Runner() as runner:
        try:
            _chat_loop(runner, engine, arguments, params)
        finally:
            runner.run(engine.shutdown())
    return 0


def _chat_loop(
    runner: asyncio.Runner,
    engine: AsyncEngine,
    arguments: argparse.Namespace,
    params: SamplingParams,
) -> None:
    """Take turns; the input is read outside of the event loop, where Ctrl-C ends it at once."""
    messages: list[dict[str, Any]] = []
    if arguments.system:
        messages.append({"role": "system", "content": arguments.system})
    print("Type a message; an empty line or Ctrl-D ends the conversation.", file=sys.stderr)
    while question := _read_line():
        messages.append({"role": "user", "content": question})
        try:
            completion = runner.run(_stream_completion(engine, messages, params, arguments.adapter))
        except RequestError as error:
            print(f"[{error.code}] {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": completion})


def _read_line() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


async def _stream_completion(
    engine: AsyncEngine, messages: list[dict[str, Any]], params: SamplingParams, adapter: str | None
) -> str:
    """Print a completion piece by piece; return its text without the reasoning."""
    rendered = engine.frontend.chat_template.render(messages)
    parser = engine.frontend.completion_parsers(rendered.text, with_tools=False)
    printer = CompletionPrinter()
    try:
        async for delta in engine.generate(rendered.as_prompt(), params, lora_request=adapter):
            printer.show(parser.feed(delta.text))
        printer.show(parser.close())
    finally:
        printer.close()
    return printer.text
