"""The commands of `quire`, and the way from a command line to one of them.

Only the module of the command that runs is imported.
"""

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from quire.cli.command_parser import CommandParser
from quire.cli.log_flags import LogFlags, add_log_flags
from quire.errors import UsageError
from quire.plugins.registry import did_you_mean

HELP_FLAGS = frozenset({"-h", "--help"})
VERSION_FLAGS = frozenset({"-V", "--version"})


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        actions: Summary of each of its actions by name; empty if it has none.
        action_word: Name of an action in the usage.
        log_level: Level from which its log is shown.
    """

    summary: str
    actions: Mapping[str, str] = field(default_factory=dict)
    action_word: str = "ACTION"
    log_level: int = logging.INFO


COMMANDS = {
    "run": Command("complete a prompt on the command line", log_level=logging.WARNING),
    "chat": Command("talk to a model in the terminal", log_level=logging.WARNING),
    "serve": Command("serve a model over HTTP, with OpenAI's routes"),
    "run-batch": Command(
        "compute a file of requests, as OpenAI's Batch API does", log_level=logging.WARNING
    ),
    "explain": Command(
        "show which plugin would serve each part of a model, and why", log_level=logging.WARNING
    ),
    "plugins": Command(
        "list, show and check the installed plugins",
        {
            "list": "every plugin, its state, and the names that it offers",
            "show": "everything about one plugin, or one name that a plugin offers",
            "doctor": "problems and how to fix them; exit status 1 if there are any",
        },
        log_level=logging.WARNING,
    ),
    "config": Command(
        "show the settings in force",
        {"show": "every option with its value, as YAML; with --origin where each was set"},
        log_level=logging.WARNING,
    ),
    "completion": Command(
        "print a script that completes commands and options in a shell", log_level=logging.WARNING
    ),
    "worker": Command("run ranks of an engine that is started on another machine"),
    "bench": Command(
        "measure a server, throughput, start-up, the scheduler, the prefix cache and grammars",
        {
            "serve": "times and throughput of a server under load, as its users see them",
            "throughput": "tokens per second, all prompts at once",
            "startup": "fresh process to first token, in seconds",
            "scheduler": "CPU time of the engine itself, around workers that do nothing",
            "prefix": "what the prefix cache costs and gains, by hit rate",
            "structured": "tokens per second, by the share of requests with structured output",
            "cluster": "routing policies over many simulated replicas, in virtual time",
        },
        "MEASURE",
    ),
}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line: the command, its action, and what follows.

    Attributes:
        path: Name of the command and of its action; empty: none was named.
        rest: Words after them.
    """

    path: tuple[str, ...]
    rest: tuple[str, ...]

    @property
    def asks_for_help(self) -> bool:
        """Whether `--help` is among the flags."""
        flags = self.rest[: self.rest.index("--")] if "--" in self.rest else self.rest
        return not HELP_FLAGS.isdisjoint(flags)


def run_command_line(argv: Sequence[str]) -> int:
    """Run a command line; return its exit status.

    Raises:
        UsageError: There is no such command, or its arguments are wrong.
        QuireError: The command failed.
    """
    if argv and argv[0] in VERSION_FLAGS:
        print(f"quire {version('quire')}")
        return 0
    line = find_command(argv)
    if line.asks_for_help:
        print(help_text(line.path), end="")
        return 0
    command = COMMANDS[line.path[0]]
    arguments = parser_of(line.path).read(line.rest)
    return _run(line.path, command, arguments)


def find_command(argv: Sequence[str]) -> CommandLine:
    """Return the command that a command line names.

    Raises:
        UsageError: It names none, or one that does not exist.
    """
    if argv and argv[0] == "help":
        argv = (*argv[1:], "--help")
    if not argv or argv[0] in HELP_FLAGS:
        if argv:
            return CommandLine((), ("--help",))
        raise UsageError("a command is missing", hint="see `quire --help`")
    name = argv[0]
    if name not in COMMANDS:
        raise _unknown("command", name, COMMANDS, "quire")
    command, rest = COMMANDS[name], tuple(argv[1:])
    if not command.actions or (rest and rest[0] in HELP_FLAGS):
        return CommandLine((name,), rest)
    if not rest:
        raise UsageError(
            f"`quire {name}` needs {_article(command.action_word)} {command.action_word}: "
            f"{', '.join(command.actions)}",
            hint=f"see `quire {name} --help`",
        )
    if rest[0] not in command.actions:
        raise _unknown(command.action_word.lower(), rest[0], command.actions, f"quire {name}")
    return CommandLine((name, rest[0]), rest[1:])


def parser_of(path: Sequence[str]) -> CommandParser:
    """Return the parser of a command, or of an action, with its arguments."""
    command = COMMANDS[path[0]]
    summary = command.actions[path[1]] if len(path) > 1 else command.summary
    parser = CommandParser(path, summary)
    _module_of(path).add_arguments(parser)
    add_log_flags(parser)
    return parser


def help_text(path: Sequence[str]) -> str:
    """Return the help of quire, of a command, or of an action."""
    if not path:
        about = "An LLM inference and serving engine composed from plugins."
        names = {name: command.summary for name, command in COMMANDS.items()}
        return _overview("quire", "COMMAND", about, names)
    command = COMMANDS[path[0]]
    if len(path) == 1 and command.actions:
        prog = f"quire {path[0]}"
        return _overview(prog, command.action_word, command.summary, command.actions)
    return parser_of(path).format_help()


def _run(path: Sequence[str], command: Command, arguments: argparse.Namespace) -> int:
    from quire.cli.terminal_log import log_to_stderr
    from quire.process.call_trace import trace_calls_if_asked
    from quire.process.children.stack_dump import enable_stack_dumps

    enable_stack_dumps()
    arguments.path = tuple(path)
    flags = LogFlags.of(arguments, command.log_level)
    trace_calls_if_asked()
    with log_to_stderr(flags.level):
        return int(_module_of(path).run(arguments))


def _module_of(path: Sequence[str]) -> ModuleType:
    return import_module(f"quire.cli.{path[0].replace('-', '_')}")


def _overview(prog: str, word: str, about: str, names: Mapping[str, str]) -> str:
    width = max(map(len, names)) + 2
    rows = (f"  {name:<{width}}{summary}" for name, summary in names.items())
    return "\n".join(
        [
            f"usage: {prog} {word} [options]",
            "",
            about,
            "",
            *rows,
            "",
            f"`{prog} {word} --help` shows the options; `quire --version`, the version.",
            "",
        ]
    )


def _unknown(what: str, name: str, known: Iterable[str], prog: str) -> UsageError:
    see = f"see `{prog} --help`"
    if not name.startswith("-"):
        return UsageError(f"there is no {what} {name!r}{did_you_mean(name, known)}", hint=see)
    flags = ("help", "version") if known is COMMANDS else ("help",)
    for flag in get_close_matches(name.lstrip("-"), flags, 1):
        return UsageError(f"there is no option {name!r}; did you mean '--{flag}'?", hint=see)
    return UsageError(f"{name} stands before the {what}; flags follow it", hint=see)


def _article(word: str) -> str:
    return "an" if word[0] in "AEIOU" else "a"
