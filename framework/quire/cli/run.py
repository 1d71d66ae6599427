"""`quire run [MODEL] [PROMPT]`: one prompt, on the command line or from standard input.

On a terminal the completion is printed while it is generated.
"""

import argparse
import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

from quire.async_engine import AsyncEngine
from quire.cli.command_parser import CommandParser
from quire.cli.completion_printer import CompletionPrinter, print_json, print_output
from quire.cli.options import add_model_options
from quire.cli.progress_line import ProgressLine
from quire.cli.sampling_flags import add_generation_flags, read_json_file, read_sampling_params
from quire.cli.setting_values import read_settings
from quire.errors import UsageError
from quire.frontend.chat.completion_parser import CompletionParser
from quire.outputs import Delta, Prompt
from quire.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 256


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--raw", action="store_true", help="continue the text; no chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--tools", metavar="FILE", help="a JSON file with OpenAI tool definitions")
    parser.add_argument("--json", action="store_true", help="print the whole output as JSON")
    parser.add_argument("--stats", action="store_true", help="print times and plugins as well")
    add_generation_flags(parser)
    add_model_options(parser)
    parser.add_word("prompt", "the prompt; standard input follows it, or stands in its place")


def run(arguments: argparse.Namespace) -> int:
    """Generate and print."""
    params = read_sampling_params(arguments, DEFAULT_MAX_TOKENS)
    enable_lora = True if arguments.adapter else None
    settings = read_settings(arguments, enable_lora=enable_lora)
    tools = read_json_file(Path(arguments.tools)) if arguments.tools else None
    prompt = read_prompt(arguments.prompt, sys.stdin, is_raw=arguments.raw)
    with ProgressLine(f"loading {settings.model.model}"):
        engine = AsyncEngine.from_settings(settings)
    with asyncio.Runner() as runner:
        try:
            request = _Request(engine, arguments, prompt, params, tools)
            runner.run(request.complete())
        finally:
            runner.run(engine.shutdown())
    return 0


def read_prompt(argument: str | None, stdin: TextIO | None, *, is_raw: bool) -> str:
    """Return the prompt: the argument, then what is piped into standard input.

    Args:
        argument: Prompt of the command line; "-" stands for standard input.
        stdin: Standard input; None if it is closed.
        is_raw: Whether the last line break of standard input is a part of the prompt.

    Raises:
        UsageError: There is no prompt.
    """
    typed = "" if argument in (None, "-") else str(argument)
    if stdin is None or not _is_read(stdin, argument):
        piped = ""
    else:
        piped = stdin.read() if is_raw else stdin.read().removesuffix("\n")
    if not typed and not piped:
        raise UsageError(
            "there is no prompt",
            hint='write `quire run "a prompt"`, or pipe one into it; see `quire run --help`',
        )
    return f"{typed}\n\n{piped}" if typed and piped else typed or piped


def _is_read(stdin: TextIO, argument: str | None) -> bool:
    """Return whether standard input is read, which may wait for its end.

    With a prompt on the command line only a pipe or a file is: another program's standard input may
    stay open for as long as it runs.
    """
    if argument == "-":
        return True
    if argument is None:
        return not stdin.isatty()
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except OSError:  # it is an object of Python
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


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
        self._tools = tools
        frontend = engine.frontend
        self._is_chat = not arguments.raw and frontend.chat_template.exists
        self._prompt: Prompt = prompt
        if self._is_chat:
            system = arguments.system
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": prompt})
            rendered = frontend.chat_template.render(messages, tools)
            self._prompt, prompt = rendered.as_prompt(), rendered.text
        self._text = prompt

    async def complete(self) -> None:
        """Generate, and print the completions and the statistics."""
        started = time.perf_counter()
        is_streamed = self._params.n == 1 and not self._arguments.json and sys.stdout.isatty()
        num_tokens = await (self._stream() if is_streamed else self._print_whole())
        if self._arguments.stats:
            _print_stats(self._engine, num_tokens, time.perf_counter() - started)

    async def _stream(self) -> int:
        """Print the completion while it is generated; return its number of tokens."""
        parsers = self._engine.frontend.completion_parsers
        parser = (
            parsers(self._text, with_tools=bool(self._tools))
            if self._is_chat
            else CompletionParser()
        )
        printer, num_tokens = CompletionPrinter(), 0
        try:
            async for delta in self._deltas():
                num_tokens += len(delta.token_ids)
                printer.show(parser.feed(delta.text))
            printer.show(parser.close())
        finally:
            printer.close()
        return num_tokens

    def _deltas(self) -> AsyncIterator[Delta]:
        return self._engine.generate(
            self._prompt, self._params, lora_request=self._arguments.adapter
        )

    async def _print_whole(self) -> int:
        output = await self._engine.generate_whole(
            self._prompt, self._params, lora_request=self._arguments.adapter
        )
        if self._is_chat:
            parsers = self._engine.frontend.completion_parsers
            parsers.split(output.outputs, self._text, self._tools)
        (print_json if self._arguments.json else print_output)(output)
        return sum(len(completion.token_ids) for completion in output.outputs)


def _print_stats(engine: AsyncEngine, num_tokens: int, seconds: float) -> None:
    rate = num_tokens / seconds
    print(f"\n{num_tokens} tokens in {seconds:.2f} s, {rate:.1f} tokens/s", file=sys.stderr)
    for choice in engine.composition.choices:
        print(f"{choice.role:<26} {choice.name:<20} {choice.entry.source}", file=sys.stderr)
