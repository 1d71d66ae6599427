"""Every option has a flag, a variable and a key."""

import pytest

from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options, all_options
from quire.errors import UsageError


def test_every_option_has_a_flag_a_variable_and_a_key():
    options = {option.name: option for option in all_options()}
    option = options["max_num_seqs"]
    assert (option.flag, option.variable) == ("--max-num-seqs", "QUIRE_MAX_NUM_SEQS")
    assert len({o.flag for o in options.values()}) == len(options)


def test_a_flag_of_the_wrong_type_is_wrong_usage():
    with pytest.raises(UsageError, match="--max-num-seqs must be a whole number, got 'many'"):
        parser_of_options().read(["--max-num-seqs", "many"])


def test_the_help_shows_that_the_items_of_a_list_may_be_joined_by_commas():
    shown = " ".join(parser_of_options().format_help().split())
    assert "--pipeline-layers N,N,... [N ...]" in shown


def parser_of_options():
    parser = CommandParser(("run",))
    add_model_options(parser)
    return parser
