"""`quire chat [MODEL]`: a conversation in the terminal, with streamed completions."""

import argparse
import asyncio
import sys
from typing import Any

from quire.async_engine import AsyncEngine
from quire.cli.options import add_model_options, read_settings
from quire.cli.sampling_flags import add_generation_flags, read_sampling_params
from quire.errors import RequestError
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta
from quire.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 1024
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    add_generation_flags(parser)
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run a conversation until the end of the input."""
    params = read_sampling_params(arguments, DEFAULT_MAX_TOKENS)
    settings = read_settings(arguments, enable_lora=True if arguments.adapter else None)
    return asyncio.run(_chat_loop(AsyncEngine.from_settings(settings), arguments, params))


async def _chat_loop(
    engine: AsyncEngine, arguments: argparse.Namespace, params: SamplingParams
) -> int:
    messages: list[dict[str, Any]] = []
    if arguments.system:
        messages.append({"role": "system", "content": arguments.system})
    print("Type a message; an empty line or Ctrl-D ends the conversation.", file=sys.stderr)
    try:
        while question := await _read_line():
            messages.append({"role": "user", "content": question})
            try:
                completion = await _stream_completion(engine, messages, params, arguments.adapter)
            except RequestError as error:
                print(f"[{error.code}] {error}", file=sys.stderr)
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": completion})
    finally:
        await engine.shutdown()
    return 0


async def _read_line() -> str:
    try:
        return (await asyncio.to_thread(input, "> ")).strip()
    except EOFError:
        return ""


async def _stream_completion(
    engine: AsyncEngine, messages: list[dict[str, Any]], params: SamplingParams, adapter: str | None
) -> str:
    """Print a completion piece by piece; return its text without the reasoning."""
    text = engine.frontend.chat_template.render(messages)
    parser = engine.frontend.completion_parsers(text, with_tools=False)
    texts: list[str] = []
    prompt = {"prompt": text, "add_special_tokens": False}
    async for delta in engine.generate(prompt, params, lora_request=adapter):
        _show(parser.feed(delta.text), texts)
    _show(parser.close(), texts)
    print()
    return "".join(texts)


def _show(events: list[Any], texts: list[str]) -> None:
    for event in events:
        if isinstance(event, TextDelta):
            texts.append(event.text)
            print(event.text, end="", flush=True)
        elif isinstance(event, ReasoningDelta):
            is_terminal = sys.stdout.isatty()
            print(f"{DIM}{event.text}{PLAIN}" if is_terminal else event.text, end="", flush=True)
