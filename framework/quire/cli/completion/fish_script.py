"""Completion script of fish."""

from collections.abc import Iterator, Sequence

from quire.cli.completion.command_table import KnownCommand, KnownFlag, KnownValues

HEAD = """\
# Completion of quire in fish: put this file into ~/.config/fish/completions/quire.fish

function __quire_at --description 'whether the words so far name this command'
    set -l words (commandline -opc)
    test (count $words) -gt (count $argv); or return 1
    for index in (seq (count $argv))
        test $words[(math $index + 1)] = $argv[$index]; or return 1
    end
end

function __quire_ends --description 'whether the words so far are this command and no more'
    set -l words (commandline -opc)
    test (count $words) -eq (math (count $argv) + 1); and __quire_at $argv
end

complete -c quire -f
complete -c quire -n 'test (count (commandline -opc)) -eq 1' -l version -s V -d 'show the version'
"""


def script(table: Sequence[KnownCommand]) -> str:
    """Return the script."""
    lines = [HEAD]
    for command in table:
        if len(command.path) == 1:
            condition = "test (count (commandline -opc)) -eq 1"
            lines.append(_line(condition, f"-a {command.path[0]}", command.summary))
        for name, summary in command.actions.items():
            condition = f"__quire_ends {' '.join(command.path)}"
            lines.append(_line(condition, f"-a {name}", summary))
        lines += _command(command)
    return "\n".join(lines) + "\n"


def _command(command: KnownCommand) -> Iterator[str]:
    condition = f"__quire_at {' '.join(command.path)}"
    for flag in command.flags:
        yield _line(condition, " ".join([*_names(flag), *_values(flag.values)]), flag.help)
    for values in command.words:
        if values.words:
            yield _line(condition, f"-a {_quoted(' '.join(values.words))}", "")
        if values.are_files:
            yield _line(condition, "-F", "")


def _names(flag: KnownFlag) -> Iterator[str]:
    for name in flag.names:
        yield f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"


def _values(values: KnownValues | None) -> Iterator[str]:
    if values is None:
        return
    yield "-r -F" if values.are_files else "-x"
    if values.words:
        yield f"-a {_quoted(' '.join(values.words))}"


def _line(condition: str, arguments: str, text: str) -> str:
    about = f" -d {_quoted(text)}" if text else ""
    return f"complete -c quire -n {_quoted(condition)} {arguments}{about}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
