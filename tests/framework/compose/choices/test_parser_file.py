"""A tool-call parser may be a file: a table of a format, or a Python class."""

import pytest

from quire.compose.choices.parser_choice import ParsedModel, choose_parser
from quire.compose.choices.parser_file import MAX_FILE_BYTES
from quire.errors import PluginLoadError, UnknownNameError
from quire.testing.tool_parsing import read_events

MODEL = ParsedModel("LlamaForCausalLM", "")
TABLE = 'section_open = ["<call>"]\nsection_close = ["</call>"]\n'
PARSER = """
from quire.interfaces.tool_parsing import TextDelta, ToolParser, ToolParserCapabilities


class Mine(ToolParser):
    capabilities = ToolParserCapabilities(markers=("<a>",))

    def feed(self, delta):
        return [TextDelta(delta)]

    def close(self):
        return []
"""


@pytest.fixture
def choose(quire_registries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def choose(wanted, text=None):
        if text is not None:
            (tmp_path / wanted.rpartition(":Mine")[0] if ":" in wanted else tmp_path / wanted
             ).write_text(text, "utf-8")  # fmt: skip
        return choose_parser(quire_registries.tool_parsers, wanted, MODEL)

    return choose


def test_a_table_is_a_parser_of_its_format(choose, quire_registries):
    choice = choose("./mine.toml", TABLE)
    parser = quire_registries.tool_parsers.load(choice.entry).for_tools([])
    events = parser.feed('Hi <call>{"name": "f"}</call>')
    assert read_events([*events, *parser.close()]).calls == [("f", "{}")]
    assert choice.entry.capabilities.markers == ("<call>", "</call>")
    assert (choice.name, choice.reason) == ("./mine.toml", "by setting")


def test_the_version_of_a_file_is_its_content(choose):
    first = choose("mine.toml", TABLE).entry.source
    assert choose("mine.toml").entry.source == first
    assert choose("mine.toml", TABLE + "# other\n").entry.source != first


@pytest.mark.parametrize(
    ("name", "text", "is_table"), [("mine.toml", TABLE, True), ("mine.py:Mine", PARSER, False)]
)
def test_clients_see_the_name_of_a_file_without_its_folder(choose, tmp_path, name, text, is_table):
    source = choose(f"{tmp_path}/{name}", text).entry.source
    assert str(source).startswith(f"{name.partition(':')[0]} (file ")
    assert source.is_table == is_table


@pytest.mark.parametrize("wanted", ["./mine.py", "mine.py", "mine.py:Mine"])
def test_a_python_file_is_the_parser_that_it_defines(choose, quire_registries, wanted):
    choice = choose(wanted, PARSER)
    assert quire_registries.tool_parsers.load(choice.entry).__name__ == "Mine"
    assert choice.entry.capabilities.markers == ("<a>",)


def test_capabilities_have_their_type(choose):
    with pytest.raises(PluginLoadError, match=r"mine\.py: capabilities of Mine must be"):
        choose("mine.py", PARSER.replace("ToolParserCapabilities(markers=", "dict(markers="))


def test_a_field_of_the_capabilities_is_named_with_its_line(choose):
    said = r"mine\.py, line 6: PluginError: markers of ToolParserCapabilities must be of type tuple"
    with pytest.raises(PluginLoadError, match=said):
        choose("mine.py", PARSER.replace('("<a>",)', '"abc"'))


@pytest.mark.parametrize(
    ("wanted", "text", "message"),
    [
        ("./none.toml", None, r"'none\.toml' is a path, and the file cannot be read: No such"),
        ("mine.json", "{}", r"'mine\.json'; files may have the suffix \.py, \.toml"),
        ("./mine.yaml", "a: 1", r"'mine\.yaml'; files may have the suffix \.py, \.toml"),
        ("mine.toml", "section_open = [", r"mine\.toml: it is not TOML: .*end of document"),
        ("mine.toml", "sektion_open = []", r"no field 'sektion_open'; did you mean 'section_open'"),
        ("mine.toml", "x" * (MAX_FILE_BYTES + 1), "has 1048577 bytes; the limit is 1048576"),
        ("mine.py", "import", r"mine\.py, line 1: SyntaxError"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(choose, wanted, text, message):
    with pytest.raises(PluginLoadError, match=message):
        choose(wanted, text)


def test_a_file_of_other_bytes_is_refused(choose, tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PluginLoadError, match=r"mine\.toml: .*utf-8"):
        choose("mine.toml")


def test_a_suffix_alone_is_no_parser(choose):
    with pytest.raises(UnknownNameError, match=r"name a file, \./NAME\.toml"):
        choose(".toml")


def test_a_name_that_nothing_has_is_answered_with_the_nearest(choose):
    with pytest.raises(UnknownNameError, match="did you mean 'qwen3_coder'"):
        choose("qwen3_codr")
    with pytest.raises(UnknownNameError):
        choose("qwen3.5")


def test_a_name_is_no_file_of_that_name(choose):
    assert choose("qwen3_coder", "").entry.source.plugin == "quire_tool_parsers"


THINKING = """
from quire.interfaces.reasoning import ReasoningDelta, ReasoningParser


class Mine(ReasoningParser):
    is_thinking = True

    def feed(self, delta):
        return [ReasoningDelta(delta)]

    def close(self):
        return []
"""


@pytest.mark.parametrize(
    ("name", "text", "end"),
    [
        ("mine.toml", 'open = ["<a>"]\nclose = ["</a>"]\n', "</a>"),
        ("mine.py", THINKING, None),
    ],
)
def test_a_reasoning_parser_may_be_a_file_as_well(quire_registries, tmp_path, name, text, end):
    path = tmp_path / name
    path.write_text(text)
    registry = quire_registries.reasoning_parsers
    entry = choose_parser(registry, str(path), MODEL).entry
    parser = registry.load(entry)("<a>")
    assert (parser.is_thinking, entry.capabilities.end_marker) == (True, end)


def test_a_file_with_a_parser_of_another_kind_is_refused(quire_registries, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PARSER)
    with pytest.raises(PluginLoadError, match="no subclass of"):
        choose_parser(quire_registries.reasoning_parsers, str(path), MODEL)
