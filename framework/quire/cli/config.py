"""`quire config show`: all settings in force, and where each was set."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from quire.cli.command_parser import CommandParser
from quire.cli.options import Option, add_model_options, all_options, group_title
from quire.cli.setting_values import HIDDEN, SettingValue, all_values
from quire.config import GROUPS


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--origin", action="store_true", help="also show where each was set")
    parser.add_argument("--json", action="store_true", help="print JSON instead of YAML")
    add_model_options(parser, GROUPS)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings."""
    options = {option.name: option for option in all_options()}
    values = [_shown(value, options[value.name]) for value in all_values(arguments)]
    if arguments.json:
        print(json.dumps(_as_json(values, with_origin=arguments.origin), indent=2))
    else:
        sys.stdout.writelines(f"{line}\n" for line in yaml_lines(values, arguments.origin))
    return 0


def yaml_lines(values: Iterable[SettingValue], with_origin: bool) -> Iterator[str]:
    """Yield a YAML file for `--config`, whose comments say where the values were set."""
    groups = {option.name: option.group for option in all_options()}
    last = ""
    for value in values:
        if (group := groups[value.name]) != last:
            yield from ([""] if last else [])
            yield f"# {group_title(group)}"
            last = group
        line = f"{_key(value)}: {json.dumps(value.value, ensure_ascii=False)}"
        hidden = "# " if value.value == HIDDEN else ""  # a comment: it is not the value
        yield f"{hidden}{line}" + (f"  # {value.origin}" if with_origin else "")


def _as_json(values: Iterable[SettingValue], *, with_origin: bool) -> dict[str, Any]:
    if with_origin:
        return {_key(v): {"value": v.value, "origin": v.origin} for v in values}
    return {_key(v): v.value for v in values}


def _shown(value: SettingValue, option: Option) -> SettingValue:
    """Return the value as it is shown: of a secret only that it is set."""
    is_hidden = option.is_secret and value.value
    return SettingValue(value.name, HIDDEN, value.origin) if is_hidden else value


def _key(value: SettingValue) -> str:
    return value.name.replace("_", "-")
