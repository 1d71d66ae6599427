"""Options as flags, YAML keys and environment variables, from the fields in `config.py`."""

import argparse
import inspect
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from quire.cli.command_parser import CommandParser, number
from quire.config import (
    DEFAULT_MODEL,
    ENVIRONMENT_PREFIX,
    GROUPS,
    TYPE_WORDS,
    join_pairs,
    parse_truth,
)
from quire.errors import SettingsError
from quire.machine.byte_size import parse_byte_size

ENGINE_GROUPS = tuple(group for group in GROUPS if group != "server")


@dataclass(frozen=True, slots=True)
class Option:
    """One option, with what its flag, key and environment variable need; see `config.option`."""

    name: str
    group: str
    type: type
    is_list: bool
    default: Any
    help: str
    short_flag: str | None
    is_repeated: bool
    is_bytes: bool
    is_pairs: bool
    is_path: bool
    choices: tuple[str, ...]
    kind: str
    is_secret: bool

    @property
    def flag(self) -> str:
        """The long flag, which is also the key in a file."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    def parse(self, value: Any, origin: str) -> Any:
        """Turn a value from a file or the environment into the option's type.

        Raises:
            SettingsError: The value cannot be converted; the message names its origin.
        """
        if self.is_list:
            items = value.split(",") if isinstance(value, str) else value
            if self.is_pairs and isinstance(value, dict):
                items = [*join_pairs(f"{origin}: {self.name}", value)]
            if not isinstance(items, list):
                got = "" if self.is_secret else f", got {value!r}"
                raise SettingsError(f"{origin}: {self.name} must be a list{got}")
            texts = (str(item).strip() for item in items)
            return tuple(self._parse_item(text, origin) for text in texts if text)
        if self.type is bool:
            return parse_truth(value, f"{origin}: {self.name}")
        if self.is_bytes:
            return parse_byte_size(str(value), f"{origin}: {self.name}")
        return self._parse_item(value, origin)

    def _parse_item(self, value: Any, origin: str) -> Any:
        try:
            return self.type(value)
        except (TypeError, ValueError):
            raise SettingsError(
                f"{origin}: {self.name} must be {TYPE_WORDS[self.type]}, got {value!r}"
            ) from None


def all_options(groups: Iterable[str] = GROUPS) -> list[Option]:
    """Return the options of some groups of settings, in the order of `config.py`."""
    return [
        _describe(group, field, get_type_hints(GROUPS[group])[field.name])
        for group in groups
        for field in fields(GROUPS[group])
    ]


def add_model_options(
    parser: CommandParser,
    groups: Iterable[str] = ENGINE_GROUPS,
    default: str = DEFAULT_MODEL,
) -> None:
    """Add the word `model`, and a flag for each option of the groups."""
    parser.add_word("model", f"default: {default}")
    add_options(parser, groups)


def add_options(parser: argparse.ArgumentParser, groups: Iterable[str]) -> None:
    """Add a flag for each option of the groups; flags that are not given stay None."""
    options = all_options(groups)
    for group in groups:
        section = parser.add_argument_group(group_title(group))
        for option in options:
            if option.group == group:
                _add_flag(section, option)
    parser.add_argument("--config", metavar="FILE", help="a YAML file whose keys are long flags")


def add_named_options(parser: argparse.ArgumentParser, title: str, names: Iterable[str]) -> None:
    """Add a flag for some options of other groups, under a title; see `add_options`."""
    section = parser.add_argument_group(title)
    options = {option.name: option for option in all_options()}
    for name in names:
        _add_flag(section, options[name])


def group_title(group: str) -> str:
    """Return the heading of a group of settings: the first line of its docstring."""
    return (inspect.getdoc(GROUPS[group]) or group).splitlines()[0].rstrip(".")


def _describe(group: str, field: Field[Any], hint: Any) -> Option:
    is_optional = get_origin(hint) is UnionType
    inner = next(arg for arg in get_args(hint) if arg is not NoneType) if is_optional else hint
    is_list = get_origin(inner) is tuple
    if field.default is MISSING:
        raise TypeError(f"option {field.name} has no default")
    return Option(
        name=field.name,
        group=group,
        type=get_args(inner)[0] if is_list else inner,
        is_list=is_list,
        default=field.default,
        help=field.metadata["help"],
        short_flag=field.metadata["flag"],
        is_repeated=field.metadata["is_repeated"],
        is_bytes=field.metadata["is_bytes"],
        is_pairs=field.metadata["is_pairs"],
        is_path=field.metadata["is_path"],
        choices=field.metadata["choices"],
        kind=field.metadata["kind"],
        is_secret=field.metadata["is_secret"],
    )


def _add_flag(section: argparse._ArgumentGroup, option: Option) -> None:
    flags = [option.flag] + ([f"-{option.short_flag}"] if option.short_flag else [])
    default = " ".join(map(str, option.default)) if option.is_list else option.default
    shown = (
        f"{option.help.rstrip('.')} (default: {default})"
        if default not in (None, "")
        else option.help
    )
    text = shown.replace("%", "%%")
    common: dict[str, Any] = {"dest": option.name, "default": None, "help": text}
    if option.type is bool:
        section.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
    elif option.is_repeated:
        metavar = "KEY" if option.is_secret else "NAME"
        section.add_argument(*flags, action="append", metavar=metavar, **common)
    elif option.is_list:
        item = "N" if option.type is int else "NAME"
        words = (f"{item},{item},...", item)  # joined by commas, or separate
        section.add_argument(*flags, nargs="+", action="extend", metavar=words, **common)
    elif option.is_bytes:
        section.add_argument(*flags, metavar="BYTES", **common)
    else:
        metavar = {int: "N", float: "X"}.get(option.type, "TEXT")
        kind = option.type if option.type is str else number(option.type)
        section.add_argument(*flags, type=kind, metavar=metavar, **common)
