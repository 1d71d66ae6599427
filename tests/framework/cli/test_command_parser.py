"""Words and flags of a command line, in any order, and errors of two lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.command_parser import CommandParser, number
from quire.errors import UsageError


def parser():
    made = CommandParser(("do", "it"), "does it")
    made.add_word("model", "the model")
    made.add_word("prompt", "the prompt")
    made.add_argument("--size", "-s", type=number(int, 1))
    made.add_argument("--kind", choices=["fast", "small"])
    made.add_argument("--names", nargs="+")
    made.add_argument("--loud", action="store_true")
    return made


def values(*argv):
    read = parser().read(argv)
    return read.model, read.prompt


def refusal(*argv):
    with pytest.raises(UsageError) as caught:
        parser().read(argv)
    assert caught.value.hint == "see `quire do it --help`"
    return str(caught.value)


def test_one_word_is_the_last_that_is_declared():
    assert values("hi") == (None, "hi")


def test_two_words_are_both():
    assert values("demo", "hi") == ("demo", "hi")


FLAGS = st.lists(st.sampled_from(["--size 3", "--loud", "--kind=fast", "-s4"]), max_size=4).map(
    lambda flags: " ".join(flags).split()
)


@given(FLAGS, FLAGS, FLAGS)
def test_flags_may_stand_anywhere_between_words(before, between, after):
    argv = [*before, "demo", *between, "hi there", *after]
    assert values(*argv) == ("demo", "hi there")


@pytest.mark.parametrize("word", ["-", "-5", "-0.5", "- a list", "-5 degrees", ""])
def test_a_word_may_begin_with_a_hyphen_if_no_flag_can(word):
    assert values(word) == (None, word)


def test_all_that_follows_two_hyphens_are_words():
    assert values("--loud", "--", "demo", "--size") == ("demo", "--size")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--sise", "3"], "there is no option '--sise'; did you mean '--size'?"),
        (["--sise=3"], "there is no option '--sise'; did you mean '--size'?"),
        (["--xyz"], "there is no option '--xyz'"),
        (["--port", "3"], "there is no option '--port'; it is an option of `quire serve`"),
        (["--size"], "--size needs a value"),
        (["--names"], "--names needs at least one value"),
        (["-s", "x"], "--size must be a whole number, got 'x'"),
        (["--size", "0"], "--size must be at least 1, got 0"),
        (["--loud=yes"], "--loud takes no value, got 'yes'"),
        (["--kind", "fst"], "--kind must be one of fast, small, got 'fst'; did you mean 'fast'?"),
        (
            ["a", "b", "c"],
            "`quire do it` takes only MODEL and PROMPT, and 'c' is one too many; quote a text of "
            "several words",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_was_meant(argv, message):
    assert refusal(*argv) == message


def test_an_option_of_another_engine_names_ours():
    assert "its name goes into the option samplers" in refusal("--logits-processors=acme:Loud")


def test_a_word_that_is_needed_is_explained():
    made = CommandParser(("show",))
    made.add_word("name", "a plugin", is_required=True)
    with pytest.raises(UsageError, match="`quire show` needs a NAME: a plugin"):
        made.read([])


def test_a_word_may_have_choices():
    made = CommandParser(("completion",))
    made.add_word("shell", "a shell", choices=("bash", "zsh"))
    assert made.read(["zsh"]).shell == "zsh"
    with pytest.raises(UsageError, match="SHELL must be one of bash, zsh, got 'bsh'; did you mean"):
        made.read(["bsh"])


def test_words_stand_before_flags_in_the_help():
    shown = parser().format_help()
    assert shown.index("MODEL  ") < shown.index("--size")


def test_the_usage_is_one_line():
    first, *rest = parser().format_help().splitlines()
    assert first == "usage: quire do it [options] [MODEL] [PROMPT]"
    assert any(line.split() == ["PROMPT", "the", "prompt"] for line in rest)


@pytest.mark.parametrize("text", ["nan", "x", "-0.1"])
def test_a_number_may_have_a_least_value(text):
    made = CommandParser(("x",))
    made.add_argument("--rate", type=number(float, 0))
    assert made.read(["--rate", "0"]).rate == 0.0
    with pytest.raises(UsageError, match="--rate must be"):
        made.read(["--rate", text])
