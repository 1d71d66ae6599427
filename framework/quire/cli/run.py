"""`quire run [MODEL] [PROMPT]`: one prompt, on the command line or from standard input.

On a terminal the completion is printed while it is generated.
"""

import argparse
import os
import stat
import sys
from pathlib import Path
from typing import TextIO

from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.sampling_flags import add_generation_flags, read_json_file, read_sampling_params
from quire.cli.setting_values import read_settings
from quire.cli.standard_input import read_to_end
from quire.errors import UsageError

DEFAULT_MAX_TOKENS = 256
JOINED_NOTICE = (
    "waiting for the end of standard input, which is added to the prompt; "
    "`< /dev/null` leaves it out"
)
PROMPT_NOTICE = "waiting for the end of standard input, which is the prompt"


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
    from quire.cli.one_prompt import complete_prompt  # loads the engine

    complete_prompt(settings, arguments, prompt, params, tools)
    return 0


def read_prompt(argument: str | None, stdin: TextIO | None, *, is_raw: bool) -> str:
    """Return the prompt: the argument, then what is piped into standard input.

    Args:
        argument: Prompt of the command line; "-" stands for standard input.
        stdin: Standard input; None if it is closed.
        is_raw: Whether the last line break of standard input is a part of the prompt.

    Raises:
        UsageError: There is no prompt, or standard input is no text.
    """
    typed = "" if argument in (None, "-") else str(argument)
    if stdin is None or not _is_read(stdin, argument):
        piped = ""
    else:
        text = read_to_end(stdin, JOINED_NOTICE if typed else PROMPT_NOTICE)
        _check_text(text)
        piped = text if is_raw else text.removesuffix("\n")
    if not typed and not piped:
        raise UsageError(
            "there is no prompt",
            hint='write `quire run "a prompt"`, or pipe one into it; see `quire run --help`',
        )
    return f"{typed}\n\n{piped}" if typed and piped else typed or piped


def _check_text(text: str) -> None:
    """Refuse what was not UTF-8, whose bytes Python keeps as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise UsageError(
            f"standard input is not UTF-8 text: byte 0x{byte:02x} after {error.start} characters",
            hint="convert it first, as by `iconv -t utf-8 -f latin1`",
        ) from None


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
