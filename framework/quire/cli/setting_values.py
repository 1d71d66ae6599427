"""Values of settings, and where each was set.

Order of precedence: a flag, then the environment, then a file, then the default.
"""

import argparse
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.cli.log_flags import LEVEL_VARIABLE
from quire.cli.options import Option, all_options
from quire.config import ENVIRONMENT_PREFIX, Settings
from quire.errors import SettingsError, UsageError
from quire.machine import instruction_sets
from quire.native import compiled_cache, compiler
from quire.plugins.registry import did_you_mean
from quire.process import call_trace, log_lines

DEFAULT_ORIGIN = "default"
HIDDEN = "***"  # shown in place of a secret
MAX_CONFIG_BYTES = 2**20
FAULTS_VARIABLE = f"{ENVIRONMENT_PREFIX}FAULTS"  # read by the plugin quire_faults
OTHER_VARIABLES = frozenset(  # variables of quire that are not options
    {
        compiled_cache.FOLDER_VARIABLE,
        instruction_sets.VARIABLE,
        compiler.FLAGS_VARIABLE,
        FAULTS_VARIABLE,
        LEVEL_VARIABLE,
        log_lines.VARIABLE,
        call_trace.VARIABLE,
    }
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of an option.

    Attributes:
        name: Name of the option.
        origin: Where it was set, in words for the user: a flag, a variable, or a file and its key.
    """

    name: str
    value: Any
    origin: str


def read_settings(arguments: argparse.Namespace, **given: Any) -> Settings:
    """Build the settings from a file, the environment, and the flags.

    Args:
        arguments: Parsed flags.
        given: Options that the command itself sets; None: the user's value.

    Raises:
        UsageError: A value cannot be read or is invalid.
    """
    return _read_all(arguments, given)[0]


def all_values(arguments: argparse.Namespace) -> Iterator[SettingValue]:
    """Yield the value of every option, in the order of `config.py`, with its origin.

    Raises:
        UsageError: A value cannot be read or is invalid.
    """
    settings, values = _read_all(arguments, {})
    for option in all_options():
        value = getattr(getattr(settings, option.group), option.name)
        origin = values[option.name].origin if option.name in values else DEFAULT_ORIGIN
        yield SettingValue(option.name, value, origin)


def _read_all(
    arguments: argparse.Namespace, given: Mapping[str, Any]
) -> tuple[Settings, dict[str, SettingValue]]:
    """Return the settings, and the values that are set."""
    path = vars(arguments).get("path", ("serve",))
    hint = f"see `quire {' '.join(path)} --help`"
    values: dict[str, SettingValue] = {}
    try:
        values = {value.name: value for value in read_values(arguments)}
        options = {name: value.value for name, value in values.items()}
        options |= {name: value for name, value in given.items() if value is not None}
        return Settings.from_options(options), values
    except SettingsError as error:
        raise UsageError(str(error), hint=_origins(str(error), values) + hint) from None


def read_values(arguments: argparse.Namespace) -> Iterator[SettingValue]:
    """Yield the values that are set; a later one of the same name takes precedence.

    Raises:
        SettingsError: A value cannot be read.
    """
    options = {option.name: option for option in all_options()}
    flags = vars(arguments)
    if flags.get("config"):
        yield from _read_file(Path(flags["config"]), options)
    yield from _read_environment(os.environ, options)
    for name, option in options.items():
        if flags.get(name) is not None:
            _warn_of_secret(option)
            yield SettingValue(name, _read_flag(option, flags[name]), option.flag)


def _origins(message: str, values: Mapping[str, SettingValue]) -> str:
    """Return where the options that a message names were set, unless it says so itself."""
    named = [values[word] for word in dict.fromkeys(re.findall(r"\w+", message)) if word in values]
    found = [f"{value.name} is set by {value.origin}" for value in named]
    has_origin = any(value.origin in message for value in named)
    return "" if not found or has_origin else f"{' and '.join(found)}; "


def _read_flag(option: Option, value: Any) -> Any:
    """Return the value of a parsed flag; the items of a list may also be joined by commas."""
    if option.is_bytes:
        return option.parse(value, option.flag)
    is_joined = option.is_list and not option.is_repeated and isinstance(value, list)
    return option.parse(",".join(value), option.flag) if is_joined else value


def _warn_of_secret(option: Option) -> None:
    """Warn of a secret that is a flag: a list of processes shows the command line."""
    if option.is_secret:
        logger.warning(
            "other users of this machine can see the value of %s in the list of processes: better "
            "set %s, or use %s-file",
            option.flag,
            option.variable,
            option.flag,
        )


def _read_environment(
    environment: Mapping[str, str], options: Mapping[str, Option]
) -> Iterator[SettingValue]:
    known = {option.variable for option in options.values()} | OTHER_VARIABLES
    for variable in environment:
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known:
            hint = did_you_mean(variable, known)
            logger.warning(
                "ignoring environment variable %s, which is not an option%s", variable, hint
            )
    for name, option in options.items():
        if option.variable in environment:
            value = option.parse(environment[option.variable], option.variable)
            yield SettingValue(name, value, option.variable)


def _read_file(path: Path, options: Mapping[str, Option]) -> Iterator[SettingValue]:
    import yaml  # only if a file is given

    text = _text_of(path)
    try:
        keys = _keys(yaml.compose(text, yaml.SafeLoader))
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:  # its message quotes lines of the file, which may have keys
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        place = f": see line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(f"{path} is not YAML{place}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must contain keys and values")
    if (twice := _first_repeated(keys)) is not None:
        raise SettingsError(f"{path}: {twice} is set twice; leave one of the two")
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in options:
            hint = did_you_mean(name, options)
            raise SettingsError(f"{path}: there is no option {key!r}{hint}")
        yield SettingValue(name, _file_value(options[name], value, path), f"{path}: {key}")


def _text_of(path: Path) -> str:
    """Return the text of a file.

    Raises:
        SettingsError: It is missing, too large, or cannot be read as UTF-8.
    """
    if not path.exists():
        raise SettingsError(f"no such file: {path}")
    if not path.is_file():
        raise SettingsError(f"{path} is no file")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise SettingsError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text") from None


def _keys(node: Any) -> list[str]:
    """Return the keys of a YAML mapping as they are written, repeated ones included."""
    pairs = node.value if node is not None and node.id == "mapping" else []
    return [str(key.value) for key, _ in pairs]


def _first_repeated(keys: Iterable[str]) -> str | None:
    """Return the first key that names the same option as one before it."""
    seen: set[str] = set()
    for key in keys:
        if (name := key.replace("-", "_")) in seen:
            return key
        seen.add(name)
    return None


def _file_value(option: Option, value: Any, path: Path) -> Any:
    """Return the value of a key; an empty one is the default of an option that has none.

    Raises:
        SettingsError: It is of another type, or a secret that `quire config show` has hidden.
    """
    if value is None and option.default is None:
        return None
    if option.is_secret and value == HIDDEN:
        raise SettingsError(
            f"{path}: {option.name} is not {HIDDEN}, which `quire config show` prints in place of "
            f"secrets; set {option.variable}"
        )
    return option.parse(value, str(path))
