"""The way from a command line to a command."""

import pytest

from quire.cli.commands import COMMANDS, find_command, help_text, run_command_line
from quire.errors import UsageError

PATHS = [(name,) for name in COMMANDS] + [
    (name, action) for name, command in COMMANDS.items() for action in command.actions
]


def test_help_names_every_command(capsys):
    assert run_command_line(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_printed(flag, capsys):
    assert run_command_line([flag]) == 0
    assert capsys.readouterr().out.startswith("quire 0.")


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_and_action_explains_itself(path, capsys):
    for argv in ([*path, "--help"], ["help", *path], [*path, "-h"]):
        assert run_command_line(argv) == 0
        shown = capsys.readouterr().out
        assert shown == help_text(path)
        assert shown.startswith(f"usage: quire {' '.join(path)} ")


def test_help_among_other_flags_is_help_although_they_are_wrong(capsys):
    assert run_command_line(["run", "--nonsense", "--help"]) == 0
    assert "usage: quire run" in capsys.readouterr().out


def test_help_after_two_hyphens_is_a_word():
    assert not find_command(["run", "--", "--help"]).asks_for_help


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        ([], "a command is missing", "see `quire --help`"),
        (["serv"], "there is no command 'serv'; did you mean 'serve'?", "see `quire --help`"),
        (
            ["bench", "thruput"],
            "there is no measure 'thruput'; did you mean 'throughput'?",
            "see `quire bench --help`",
        ),
        (
            ["plugins", "lst"],
            "there is no action 'lst'; did you mean 'list'?",
            "see `quire plugins --help`",
        ),
        (
            ["plugins"],
            "`quire plugins` needs an ACTION: list, show, doctor",
            "see `quire plugins --help`",
        ),
        (
            ["--json", "run"],
            "--json stands before the command; flags follow it",
            "see `quire --help`",
        ),
        (
            ["--versoin"],
            "there is no option '--versoin'; did you mean '--version'?",
            "see `quire --help`",
        ),
        (
            ["bench", "--hlep"],
            "there is no option '--hlep'; did you mean '--help'?",
            "see `quire bench --help`",
        ),
        (
            ["help", "srve"],
            "there is no command 'srve'; did you mean 'serve'?",
            "see `quire --help`",
        ),
    ],
)
def test_a_command_that_does_not_exist_is_named_with_the_nearest(argv, message, hint):
    with pytest.raises(UsageError) as caught:
        find_command(argv)
    assert (str(caught.value), caught.value.hint) == (message, hint)
