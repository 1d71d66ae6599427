"""Completion script of bash."""

import shlex
from collections.abc import Iterator, Sequence

from quire.cli.completion.command_table import KnownCommand, KnownValues

FRAME = """\
# Completion of quire in bash: source this file, or put it into
# ~/.local/share/bash-completion/completions/quire

_quire_words() {
    COMPREPLY+=($(compgen -W "$1" -- "$cur"))
}

_quire_files() {
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen -f -- "$cur"))
}

_quire_value() {  # of the flag $prev in the command $path; fails if it takes none
    case "$path:$prev" in
@VALUES@
        *) return 1 ;;
    esac
}

_quire_arguments() {
    case "$path" in
@ARGUMENTS@
    esac
}

_quire() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" path="" index word
    local IFS=$' \\t\\n'
    COMPREPLY=()
    if [[ $cur == "=" ]]; then  # --flag=
        cur=""
    elif [[ $prev == "=" ]]; then  # --flag=val
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${COMP_WORDS[index]}"
        case "$path $word" in
@PATHS@
        esac
    done
    _quire_value || _quire_arguments
}

complete -F _quire quire
"""


def script(table: Sequence[KnownCommand]) -> str:
    """Return the script."""
    top = list(dict.fromkeys(command.path[0] for command in table))
    parts = {
        "@VALUES@": "\n".join(_values(table)),
        "@ARGUMENTS@": "\n".join(_arguments(table, top)),
        "@PATHS@": "\n".join(_paths(table)),
    }
    text = FRAME
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def _paths(table: Sequence[KnownCommand]) -> Iterator[str]:
    """Yield the cases in which a word names a command or an action."""
    for command in table:
        before, word = " ".join(command.path[:-1]), command.path[-1]
        yield f'            "{before} {word}") path="{" ".join(command.path)}" ;;'


def _values(table: Sequence[KnownCommand]) -> Iterator[str]:
    """Yield the cases of flags that take a value, those with the same values together."""
    cases: dict[KnownValues, list[str]] = {}
    for command in table:
        for flag in command.flags:
            if flag.values is not None:
                path = " ".join(command.path)
                cases.setdefault(flag.values, []).extend(f'"{path}:{n}"' for n in flag.names)
    for values, names in cases.items():
        yield f"        {'|'.join(names)}) {_call(values)} ;;"


def _arguments(table: Sequence[KnownCommand], top: Sequence[str]) -> Iterator[str]:
    """Yield the case of each command: its actions, else its flags and words."""
    yield f'        "") {_words([*top, "help", "--help", "--version"])} ;;'
    for command in table:
        path = " ".join(command.path)
        if command.actions:
            yield f'        "{path}") {_words([*command.actions, "--help"])} ;;'
            continue
        flags = [name for flag in command.flags for name in flag.names]
        words = KnownValues(
            tuple(word for values in command.words for word in values.words),
            any(values.are_files for values in command.words),
        )
        yield f'        "{path}")'
        yield f"            if [[ $cur == -* ]]; then {_words(flags)}; else {_call(words)}; fi ;;"


def _call(values: KnownValues) -> str:
    calls = [_words(values.words)] if values.words else []
    calls += ["_quire_files"] if values.are_files else []
    return "; ".join(calls) or ":"


def _words(words: Sequence[str]) -> str:
    return f"_quire_words {shlex.quote(' '.join(words))}"
