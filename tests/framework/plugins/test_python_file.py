"""A class of a Python file is imported by the file's path, and errors name the line."""

import sys

import pytest

from quire.errors import PluginLoadError
from quire.interfaces.tool_parsing import ToolParser
from quire.plugins.python_file import load_class

PARSER = """
from quire.interfaces.tool_parsing import TextDelta, ToolParser


class {name}(ToolParser):
    def feed(self, delta):
        return [TextDelta(delta)]

    def close(self):
        return []
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text, "utf-8")
        return path

    return write


def test_the_one_class_of_a_file_is_loaded(write):
    parser = load_class(write(PARSER.format(name="Mine")), None, ToolParser)
    assert (parser.__name__, len(parser().feed("x"))) == ("Mine", 1)


def test_one_of_several_classes_is_named(write):
    path = write(PARSER.format(name="Mine") + PARSER.format(name="Other"))
    assert load_class(path, "Other", ToolParser).__name__ == "Other"
    with pytest.raises(PluginLoadError, match=rf"\(Mine, Other\); name one: {path}:Mine"):
        load_class(path, None, ToolParser)
    with pytest.raises(PluginLoadError, match=r"named 'Mein' \(Mine, Other\)"):
        load_class(path, "Mein", ToolParser)


def test_a_class_that_the_file_imports_does_not_count(write):
    text = "from quire_tool_parsers.format_parser import FormatParser"
    with pytest.raises(PluginLoadError, match=r"defines no subclass of quire.*\.ToolParser$"):
        load_class(write(text), None, ToolParser)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef f(:\n", r"mine\.py, line 2: SyntaxError: "),
        ("x = 1\n\nimport no_such_module_of_mine\n", r"mine\.py, line 3: ModuleNotFoundError: "),
        ("\n\n\nraise SystemExit(3)", r"mine\.py, line 4: SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_line(write, text, message):
    before = set(sys.modules)
    with pytest.raises(PluginLoadError, match=message):
        load_class(write(text), None, ToolParser)
    assert not [name for name in set(sys.modules) - before if name.startswith("quire_file")]


def test_methods_that_are_missing_are_named(write):
    text = PARSER.format(name="Mine").replace("def close", "def end")
    with pytest.raises(PluginLoadError, match="the class Mine lacks the methods close"):
        load_class(write(text), None, ToolParser)
