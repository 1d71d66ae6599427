"""The search for a compiler: the one that CXX names, or else the first of the usual ones."""

import pytest

from quire.errors import NativeUnavailableError
from quire.native.compiler import command_arguments, extra_flags, locate_compiler


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that is all of PATH; makes commands there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)

    def make(*names):
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)

    make.folder = tmp_path
    return make


def test_the_first_of_the_usual_ones_is_taken(tools):
    tools("clang++", "c++")
    assert locate_compiler() == (str(tools.folder / "c++"),)
    tools("g++")
    assert locate_compiler() == (str(tools.folder / "g++"),)


def test_what_the_variable_names_is_taken_with_its_words(tools, monkeypatch):
    tools("g++", "mine")
    monkeypatch.setenv("CXX", "mine -m64 '-DA=b c'")
    assert locate_compiler() == (str(tools.folder / "mine"), "-m64", "-DA=b c")
    assert command_arguments() == ("-m64", "-DA=b c")


@pytest.mark.parametrize("named", [" ", "absent", "absent -m64"])
def test_a_variable_that_names_none_is_not_made_up_for(tools, monkeypatch, named):
    tools("g++")
    monkeypatch.setenv("CXX", named)
    with pytest.raises(NativeUnavailableError, match=f"looked for '{named}' of the variable CXX"):
        locate_compiler()


def test_an_empty_variable_is_none(tools, monkeypatch):
    tools("g++")
    monkeypatch.setenv("CXX", "")
    assert locate_compiler() == (str(tools.folder / "g++"),)
    assert command_arguments() == ()


def test_where_there_is_none_all_names_are_listed(tools):
    with pytest.raises(NativeUnavailableError, match=r"looked for g\+\+, c\+\+, clang\+\+"):
        locate_compiler()


def test_flags_of_the_user_are_words_of_a_shell(monkeypatch):
    monkeypatch.setenv("QUIRE_CXXFLAGS", "-g '-DA=b c'")
    assert extra_flags() == ("-g", "-DA=b c")
    monkeypatch.delenv("QUIRE_CXXFLAGS")
    assert extra_flags() == ()
