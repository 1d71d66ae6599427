"""The page for users lists the parsers that there are, and its format works."""

import re
from pathlib import Path

import pytest

from quire.testing.tool_parsing import read_events
from quire_tool_parsers.call_format import CallFormat, CallIds, JsonKeys, Tags
from quire_tool_parsers.family_table import read_table
from quire_tool_parsers.format_parser import FormatParser
from quire_tool_parsers.plugin import HARMONY_NAMES

TEXT = (Path(__file__).parents[3] / "docs" / "tool_calls.md").read_text("utf-8")
FIELDS_OF_AUTO = {
    "aliases", "template_markers", "alternative_markers", "excluded_markers", "architectures",
    "priority",
}  # fmt: skip


def test_the_page_has_the_names_of_all_families_in_their_order():
    rows = re.findall(r"^\| ((?:`[\w.-]+`(?:, )?)+) \|[^|]*\|", TEXT.partition("## What")[0], re.M)
    listed = [tuple(re.findall(r"`([^`]+)`", row)) for row in rows]
    families = [(name, *form.aliases) for name, form in read_table().items()]
    assert listed == [*families, HARMONY_NAMES]


def test_the_page_has_the_fields_of_a_format():
    listed = listed_under("| field | meaning |")
    fields = {*CallFormat.__struct_fields__}
    assert listed <= fields
    assert fields - listed <= FIELDS_OF_AUTO | {"is_list"}


@pytest.mark.parametrize(
    ("name", "table"), [("keys", JsonKeys), ("tags", Tags), ("call_ids", CallIds)]
)
def test_the_page_has_the_fields_of_a_table_in_a_format(name, table):
    assert listed_under(f"| field of `{name}` | meaning |") == {*table.__struct_fields__}


def listed_under(head):
    """Return the names in the first column of a table of the page."""
    assert head in TEXT
    table = TEXT.partition(head)[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*?) \|", table, re.M)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_format_on_the_page_reads_the_call_on_the_page():
    (toml,) = re.findall(r"```toml\n(.*?)```", TEXT, re.S)
    (call,) = re.findall(r"^# (<call>.*)$", toml, re.M)
    parser = FormatParser.from_file_text(toml).for_tools([])
    found = read_events([*parser.feed(f"So: {call}"), *parser.close()])
    assert (found.content, found.calls) == ("So:", [("find", '{"city": "Oslo"}')])
