"""Completion script of zsh."""

import re
from collections.abc import Iterator, Mapping, Sequence

from quire.cli.completion.command_table import KnownCommand, KnownFlag, KnownValues

HEAD = """\
#compdef quire
# Completion of quire in zsh: put this file as `_quire` into a folder of $fpath.
"""
GROUP = """\
@NAME@() {
    local curcontext="$curcontext" state line
    _arguments -C '1: :->name' '*:: :->arguments'
    case $state in
        name)
            local -a names=(
@NAMES@
            )
            _describe 'command' names
            ;;
        arguments)
            case $line[1] in
@CASES@
            esac
            ;;
    esac
}
"""
TAIL = """\
if [[ $funcstack[1] == _quire ]]; then
    _quire "$@"
else
    compdef _quire quire
fi
"""


def script(table: Sequence[KnownCommand]) -> str:
    """Return the script."""
    top = {command.path[0]: command.summary for command in table if len(command.path) == 1}
    parts = [HEAD, _group(("quire",), top)]
    for command in table:
        path = ("quire", *command.path)
        parts.append(_group(path, command.actions) if command.actions else _leaf(path, command))
    return "\n".join([*parts, TAIL])


def _group(path: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the function of a command that has actions."""
    shown = (f"                {_quoted(f'{name}:{text}')}" for name, text in names.items())
    cases = (f"                {name}) {_function((*path, name))} ;;" for name in names)
    text = GROUP.replace("@NAME@", _function(path))
    return text.replace("@NAMES@", "\n".join(shown)).replace("@CASES@", "\n".join(cases))


def _leaf(path: Sequence[str], command: KnownCommand) -> str:
    """Return the function of a command with flags and words."""
    specs = [spec for flag in command.flags for spec in _flag_specs(flag)]
    words = [f"{index}: :{_action(values)}" for index, values in enumerate(command.words, 1)]
    lines = " \\\n".join(f"        {_quoted(spec)}" for spec in [*specs, *words])
    return f"{_function(path)}() {{\n    _arguments \\\n{lines}\n}}\n"


def _flag_specs(flag: KnownFlag) -> Iterator[str]:
    text = re.sub(r"([\[\]:\\])", r"\\\1", flag.help)
    for name in flag.names:
        value = "" if flag.values is None else f":value:{_action(flag.values)}"
        equals = "=" if flag.values is not None and name.startswith("--") else ""
        yield f"*{name}{equals}[{text}]{value}"


def _action(values: KnownValues) -> str:
    words = " ".join(re.sub(r"([:\\ ()])", r"\\\1", word) for word in values.words)
    if values.words and values.are_files:
        return f"{{compadd {words}; _files}}"
    if values.words:
        return f"({words})"
    return "_files" if values.are_files else " "


def _function(path: Sequence[str]) -> str:
    return "_" + "_".join(path)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
