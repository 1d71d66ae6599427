"""Options of other engines lead to options that exist."""

import re

import pytest

from quire import LLM
from quire.cli.commands import COMMANDS, parser_of
from quire.cli.options import all_options
from quire.errors import SettingsError, UsageError
from quire.other_engines import NO_COUNTERPART, OPTIONS_ELSEWHERE, OTHER_NAMES

OPTIONS = {option.name for option in all_options()}
FLAG = re.compile(r"--([a-z][a-z-]*)")


def test_what_has_another_name_here_is_no_option_itself():
    assert OPTIONS & OPTIONS_ELSEWHERE.keys() == set()
    assert OTHER_NAMES.keys() & NO_COUNTERPART.keys() == set()


@pytest.mark.parametrize("name", sorted(OPTIONS_ELSEWHERE))
def test_a_way_out_names_only_flags_and_commands_that_exist(name):
    way_out = OPTIONS_ELSEWHERE[name]
    flags = {*parser_of(["serve"]).flags, *parser_of(["worker"]).flags}
    assert {f"--{flag}" for flag in FLAG.findall(way_out)} <= flags
    assert set(re.findall(r"`quire ([a-z-]+)", way_out)) <= COMMANDS.keys()


def test_the_error_of_such_an_option_has_the_way_out():
    with pytest.raises(UsageError, match="no option '--num-gpu-blocks-override'; use --num-kv-blo"):
        parser_of(["serve"]).read(["--num-gpu-blocks-override", "100"])
    with pytest.raises(UsageError, match="no option '--no-enable-log-requests'; use --access-log"):
        parser_of(["run"]).read(["--no-enable-log-requests"])
    with pytest.raises(SettingsError, match="no option 'speculative_config': nothing drafts"):
        LLM("demo", speculative_config={})
