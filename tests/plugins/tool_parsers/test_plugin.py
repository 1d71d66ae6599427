"""The registration of the plugin imports nothing heavy and is right, and so is its docs page."""

import re
import subprocess
import sys
from pathlib import Path

from quire.plugins.kinds import KINDS
from quire.plugins.registry import Registrar, Source, import_reference
from quire.testing.tool_parsing import ToolParserContract
from quire_tool_parsers import plugin
from quire_tool_parsers.hermes import HermesToolParser

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


def test_hermes_is_offered_for_templates_with_its_tag():
    kind = next(kind for kind in KINDS if kind.name == "tool_parsers")
    registrar = Registrar(kind, Source("quire_tool_parsers", "quire", "0"))
    plugin.register_tool_parsers(registry=registrar)
    (entry,) = registrar.entries
    assert (entry.name, entry.capabilities.template_markers) == ("hermes", ("<tool_call>",))
    assert import_reference(entry.reference, "the parser") is HermesToolParser


def test_the_table_of_contents_is_light():
    program = (
        "import sys, quire_tool_parsers.plugin as _;"
        "print(*{'torch', 'outlines_core', 'quire_tool_parsers.hermes'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""


def test_the_example_on_the_page_passes_the_kit(tmp_path):
    files = dict(BLOCK.findall(PAGE.read_text("utf-8")))
    assert set(files) == {
        "acme_calls/parser.py", "acme_calls/plugin.py", "acme_calls/forced.py", "pyproject.toml",
        "test_parser.py",
    }  # fmt: skip
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
