"""Commands with their options and the values that are known, for completion scripts."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quire.cli.command_parser import CommandParser, Word
from quire.cli.commands import COMMANDS, parser_of
from quire.cli.options import Option, all_options
from quire.config import PluginSettings
from quire.plugins.loading import Registries, load_plugins

PATH_METAVARS = frozenset({"FILE", "FOLDER"})


@dataclass(frozen=True, slots=True)
class KnownValues:
    """Values that are known of an argument.

    Attributes:
        words: The values.
        are_files: Whether it may also be a file or a folder.
    """

    words: tuple[str, ...] = ()
    are_files: bool = False


@dataclass(frozen=True, slots=True)
class KnownFlag:
    """A flag, with its other names.

    Attributes:
        names: All spellings, such as `--model` and `-m`.
        values: What is known of its value; None: it takes none.
    """

    names: tuple[str, ...]
    help: str
    values: KnownValues | None


@dataclass(frozen=True, slots=True)
class KnownCommand:
    """A command, or one of its actions.

    Attributes:
        path: Words that name it.
        actions: Summary of each of its actions.
        words: What is known of each of its words.
    """

    path: tuple[str, ...]
    summary: str
    actions: Mapping[str, str]
    flags: tuple[KnownFlag, ...] = ()
    words: tuple[KnownValues, ...] = ()


def command_table() -> list[KnownCommand]:
    """Return all commands and actions with what is known of their arguments.

    Names that plugins register are those of the plugins that are installed now.
    """
    registries = load_plugins(PluginSettings()).registries
    options = {option.name: option for option in all_options()}
    table = []
    for name, command in COMMANDS.items():
        if command.actions:
            table.append(KnownCommand((name,), command.summary, command.actions))
        paths: list[tuple[str, ...]] = [(name, action) for action in command.actions]
        for path in paths or [(name,)]:
            table.append(_known_command(parser_of(path), options, registries))
    return table


def _known_command(
    parser: CommandParser, options: Mapping[str, Option], registries: Registries
) -> KnownCommand:
    actions = {id(action): action for action in parser.flags.values()}.values()
    return KnownCommand(
        parser.path,
        parser.description or "",
        {},
        tuple(_known_flag(action, options, registries) for action in actions),
        tuple(_of_word(word, options, registries) for word in parser.words),
    )


def _known_flag(
    action: argparse.Action, options: Mapping[str, Option], registries: Registries
) -> KnownFlag:
    text = (action.help or "").replace("%%", "%")
    if action.nargs == 0:
        return KnownFlag(tuple(action.option_strings), text, None)
    if action.dest in options and action.choices is None:
        values = _of_option(options[action.dest], registries)
    else:
        choices = tuple(map(str, action.choices or ()))
        values = KnownValues(choices, are_files=action.metavar in PATH_METAVARS)
    return KnownFlag(tuple(action.option_strings), text, values)


def _of_word(word: Word, options: Mapping[str, Option], registries: Registries) -> KnownValues:
    if word.choices:
        return KnownValues(word.choices)
    if word.dest == "name":  # of `quire plugins show`
        return KnownValues(tuple(_all_names(registries)))
    return _of_option(options[word.dest], registries) if word.dest in options else KnownValues()


def _of_option(option: Option, registries: Registries) -> KnownValues:
    registry = registries[option.kind] if option.kind else ()
    names = (name for name in registry if not name.startswith("."))  # those are suffixes of files
    return KnownValues((*option.choices, *names), option.is_path)


def _all_names(registries: Registries) -> Iterable[str]:
    return dict.fromkeys(
        name for registry in registries for offer in registry.offers() for name in (offer.name,)
    )
