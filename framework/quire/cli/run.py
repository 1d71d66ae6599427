"""`quire run [MODEL] PROMPT`: one completion, on the command line."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from quire.cli.options import add_model_options, read_settings
from quire.cli.sampling_flags import add_generation_flags, read_json_file, read_sampling_params
from quire.llm import LLM
from quire.outputs import RequestOutput

DEFAULT_MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--raw", action="store_true", help="continue the text; no chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--tools", metavar="FILE", help="a JSON file with OpenAI tool definitions")
    parser.add_argument("--json", action="store_true", help="print the whole output as JSON")
    parser.add_argument("--stats", action="store_true", help="print times and plugins as well")
    add_generation_flags(parser)
    add_model_options(parser)
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")


def run(arguments: argparse.Namespace) -> int:
    """Generate and print."""
    params = read_sampling_params(arguments, DEFAULT_MAX_TOKENS)
    enable_lora = True if arguments.adapter else None
    settings = read_settings(arguments, enable_lora=enable_lora)
    with LLM.from_settings(settings) as llm:
        started = time.perf_counter()
        output = _generate(llm, arguments, params)
        seconds = time.perf_counter() - started
        if arguments.json:
            print(json.dumps(msgspec.to_builtins(output), ensure_ascii=False))
        else:
            _print(output)
        if arguments.stats:
            _print_stats(llm, output, seconds)
    return 0


def _generate(llm: LLM, arguments: argparse.Namespace, params: Any) -> RequestOutput:
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if arguments.raw or not llm.has_chat_template:
        return llm.generate(prompt, params, lora_request=arguments.adapter)[0]
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    messages.append({"role": "user", "content": prompt})
    tools = read_json_file(Path(arguments.tools)) if arguments.tools else None
    return llm.chat(messages, params, tools=tools, lora_request=arguments.adapter)[0]


def _print(output: RequestOutput) -> None:
    for completion in output.outputs:
        if completion.reasoning:
            print(f"[thinking] {completion.reasoning}")
        if completion.text:
            print(completion.text)
        for call in completion.tool_calls:
            print(f"[tool call] {call.name}({call.arguments})")


def _print_stats(llm: LLM, output: RequestOutput, seconds: float) -> None:
    num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
    rate = num_tokens / seconds
    print(f"\n{num_tokens} tokens in {seconds:.2f} s, {rate:.1f} tokens/s", file=sys.stderr)
    for choice in llm.composition.choices:
        print(f"{choice.role:<26} {choice.name:<20} {choice.entry.source}", file=sys.stderr)
