"""The registration of the plugin imports nothing heavy and is right, and so is its docs page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.interfaces.tool_parsing import ToolParser
from quire.plugins.kinds import KINDS
from quire.plugins.registry import Registrar, Source, import_reference
from quire.testing.tool_parsing import ToolParserContract
from quire_tool_parsers import families, plugin
from quire_tool_parsers.format_file import read_format

PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "tool_parsers.md"
FORCED = """
import re
from acme_calls.forced import ForcedLineCallParser as Parser
from quire.testing.tool_parsing import read_events
from quire_structured_output.outlines.call_regex import calls_regex

tools = [{"name": "find", "parameters": {"properties": {"days": {"type": "integer"}}}}]
forced = re.compile(calls_regex(Parser.call_grammar(tools, at_least_one=True)).expression)
text = 'CALL find {"days": 2}\\nCALL find {}'
if not forced.fullmatch(text) or forced.fullmatch("CALL find {'days': 'x'}"):
    raise SystemExit("the shapes are wrong")
parser = Parser()
calls = read_events([*parser.feed(text), *parser.close()]).calls
if calls != [("find", '{"days": 2}'), ("find", "{}")]:
    raise SystemExit(f"read {calls}")
"""
BLOCK = re.compile(r"```\w+\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def entries():
    kind = next(kind for kind in KINDS if kind.name == "tool_parsers")
    registrar = Registrar(kind, Source("quire_tool_parsers", "quire", "0"))
    plugin.register_tool_parsers(registry=registrar)
    return {entry.name: entry for entry in registrar.entries}


def test_every_family_is_offered_by_the_names_that_users_know(entries):
    known = """
        hermes llama3_json llama4_pythonic pythonic mistral qwen3_coder qwen3_xml deepseek_v3
        deepseek_v31 deepseek_v32 kimi_k2 glm45 glm47 granite granite4 internlm jamba phi4_mini_json
        xlam olmo3 step3 minimax_m2 hunyuan_a13b ernie45 seed_oss gemma4 functiongemma longcat
        gigachat3 openai
    """
    assert set(known.split()) <= set(entries)


def test_every_name_is_of_a_parser_of_its_format(entries):
    for entry in entries.values():
        assert issubclass(import_reference(entry.reference, "the parser"), ToolParser)
    assert import_reference(entries["qwen3_xml"].reference, "it") is families.qwen3_coder


def test_auto_takes_a_family_by_its_first_name(entries):
    assert entries["hermes"].capabilities.template_markers == ("<tool_call>",)
    assert entries["qwen3_json"].capabilities.template_markers == ()


def test_capabilities_have_the_texts_of_the_format(entries):
    assert entries["hermes"].capabilities.markers == ("<tool_call>", "</tool_call>")
    assert {"[TOOL_CALLS]", "[ARGS]"} <= set(entries["mistral"].capabilities.markers)
    assert {"<|tool_call>", '<|"|>'} <= set(entries["gemma4"].capabilities.markers)
    assert "<arg_value>" in entries["glm45"].capabilities.markers
    assert entries["mistral"].capabilities.call_id_length == 9


def test_a_family_that_the_table_lacks_is_no_attribute():
    with pytest.raises(AttributeError, match="no family of tool calls is named 'hermes9'"):
        families.hermes9  # noqa: B018 - it raises


def test_the_table_of_contents_is_light():
    program = (
        "import sys, quire_tool_parsers.plugin as _;"
        "print(*{'torch', 'outlines_core', 'quire_tool_parsers.families'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""


def test_the_example_on_the_page_passes_the_kit(tmp_path):
    files = dict(BLOCK.findall(PAGE.read_text("utf-8")))
    assert set(files) == {
        "acme_calls/parser.py", "acme_calls/plugin.py", "acme_calls/forced.py", "pyproject.toml",
        "test_parser.py", "mine.toml",
    }  # fmt: skip
    assert read_format(files.pop("mine.toml")).writing is not None
    (tmp_path / "acme_calls").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    check = "import acme_calls.plugin; import pytest, sys; sys.exit(pytest.main(['-q', '.']))"
    run = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    tests = [name for name in dir(ToolParserContract) if name.startswith("test_")]
    assert f"{len(tests)} passed" in run.stdout


def test_the_calls_on_the_page_can_be_forced(tmp_path):
    files = dict(BLOCK.findall(PAGE.read_text("utf-8")))
    (tmp_path / "acme_calls").mkdir()
    for name in ("acme_calls/parser.py", "acme_calls/forced.py"):
        (tmp_path / name).write_text(files[name], "utf-8")
    (tmp_path / "forced.py").write_text(FORCED, "utf-8")
    subprocess.run([sys.executable, "forced.py"], cwd=tmp_path, check=True)
