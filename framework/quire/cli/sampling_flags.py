"""Flags for generation, shared by `run` and `chat`, from the fields of `SamplingParams`."""

import argparse
import json
from pathlib import Path
from typing import Any

from quire.cli.command_parser import number
from quire.errors import RequestError, SettingsError, UsageError
from quire.sampling_params import SamplingParams, StructuredOutputsParams

MAX_SCHEMA_BYTES = 2**20
NUMBERS: dict[str, tuple[type, str]] = {
    "temperature": (float, "0 takes the most likely token"),
    "top_p": (float, "smallest set of tokens whose probabilities add up to this"),
    "top_k": (int, "the k most likely tokens"),
    "min_p": (float, "tokens at least this likely in relation to the most likely one"),
    "seed": (int, "same seed, same completion"),
    "max_tokens": (int, "tokens to generate at most"),
    "min_tokens": (int, "tokens to generate at least"),
    "n": (int, "number of completions"),
}


def add_generation_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for generation."""
    group = parser.add_argument_group("Generation")
    for name, (kind, text) in NUMBERS.items():
        metavar = "X" if kind is float else "N"
        group.add_argument(
            "--" + name.replace("_", "-"),
            type=number(kind),
            default=None,
            metavar=metavar,
            help=text,
        )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="ends the completion; repeatable"
    )
    group.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a request field that a sampler plugin declares; repeatable",
    )
    group.add_argument("--adapter", metavar="NAME", help="use this LoRA adapter")
    constraint = group.add_mutually_exclusive_group()
    constraint.add_argument(
        "--json-schema", metavar="FILE", help="the completion follows this JSON schema"
    )
    constraint.add_argument("--regex", metavar="REGEX", help="the completion matches this")
    constraint.add_argument(
        "--choice", action="append", metavar="TEXT", help="one of these; repeatable"
    )


def read_sampling_params(arguments: argparse.Namespace, default_max_tokens: int) -> SamplingParams:
    """Build `SamplingParams` from the flags.

    Raises:
        UsageError: A value is out of range, or a file or a field cannot be read.
    """
    given = vars(arguments)
    values = {name: given[name] for name in NUMBERS if given[name] is not None}
    try:
        return SamplingParams(
            **{"max_tokens": default_max_tokens} | values,
            stop=tuple(arguments.stop or ()),
            structured_outputs=_read_constraint(arguments),
            extra_args=dict(_read_field(text) for text in arguments.field),
        )
    except (RequestError, SettingsError) as error:
        path = vars(arguments).get("path", ("run",))
        raise UsageError(str(error), hint=f"see `quire {' '.join(path)} --help`") from error


def _read_constraint(arguments: argparse.Namespace) -> StructuredOutputsParams | None:
    if arguments.json_schema is not None:
        return StructuredOutputsParams(json=read_json_file(Path(arguments.json_schema)))
    if arguments.regex is not None:
        return StructuredOutputsParams(regex=arguments.regex)
    if arguments.choice:
        return StructuredOutputsParams(choice=tuple(arguments.choice))
    return None


def read_json_file(path: Path) -> Any:
    """Read a small JSON file.

    Raises:
        SettingsError: It is missing, too large, or not JSON.
    """
    if not path.is_file():
        raise SettingsError(f"no such file: {path}")
    if path.stat().st_size > MAX_SCHEMA_BYTES:
        raise SettingsError(f"{path} is larger than {MAX_SCHEMA_BYTES} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from None


def _read_field(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE; the value is JSON (a number, true, false) or else text."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise SettingsError(f"--field must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
