"""The flags for the log are those of every command; a flag goes before the environment."""

import logging
import os

import pytest

from quire.cli.command_parser import CommandParser
from quire.cli.commands import COMMANDS, parser_of
from quire.cli.log_flags import LEVEL_VARIABLE, LogFlags, add_log_flags
from quire.errors import SettingsError, UsageError
from quire.process import call_trace, log_lines


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Leave the environment as it was."""
    for variable in (LEVEL_VARIABLE, log_lines.VARIABLE, call_trace.VARIABLE):
        monkeypatch.setenv(variable, "x")
        monkeypatch.delenv(variable)


def level_of(*argv):
    parser = CommandParser(("run",))
    add_log_flags(parser)
    return LogFlags.of(parser.read(argv), logging.WARNING).level


def test_a_flag_goes_before_the_environment_and_that_before_the_default(monkeypatch):
    assert level_of() == logging.WARNING
    monkeypatch.setenv(LEVEL_VARIABLE, "INFO")
    assert level_of() == logging.INFO
    assert level_of("--log-level", "debug") == logging.DEBUG
    assert level_of("--quiet") == logging.ERROR


def test_two_levels_contradict_each_other():
    with pytest.raises(UsageError, match="cannot be used with"):
        level_of("--quiet", "--log-level", "debug")


@pytest.mark.parametrize(
    ("variable", "message"),
    [(LEVEL_VARIABLE, "debug, info, warning"), (log_lines.VARIABLE, "text, json")],
)
def test_a_variable_that_is_wrong_is_refused(monkeypatch, variable, message):
    monkeypatch.setenv(variable, "loud")
    with pytest.raises(SettingsError, match=f"{variable} must be one of {message}"):
        level_of()


def test_format_and_trace_are_passed_on_to_child_processes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    level_of("--log-format", "json", "--trace-calls", "calls")
    assert os.environ[log_lines.VARIABLE] == "json"
    assert os.environ[call_trace.VARIABLE] == str(tmp_path / "calls")


def test_a_trace_needs_a_folder_that_exists(tmp_path):
    with pytest.raises(SettingsError, match="calls cannot be traced to"):
        level_of("--trace-calls", str(tmp_path / "none" / "calls"))


@pytest.mark.parametrize(
    "path",
    [
        (name, *action)
        for name, command in COMMANDS.items()
        for action in ([(each,) for each in command.actions] or [()])
    ],
    ids=" ".join,
)
def test_every_command_has_the_flags(path):
    assert {"--log-level", "--quiet", "--log-format", "--trace-calls"} <= set(parser_of(path).flags)
