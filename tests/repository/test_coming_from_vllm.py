"""What the page for users of vLLM names exists in quire, and what quire has of vLLM's is named."""

import re
from pathlib import Path

import quire
from quire.cli.commands import COMMANDS, parser_of
from quire.cli.log_flags import LEVEL_VARIABLE
from quire.cli.options import all_options
from quire.cli.setting_values import OTHER_VARIABLES
from quire.server.field_tables import FIELD_TABLES
from quire.server.observe.quire_metrics import QUIRE_METRICS
from quire.server.observe.vllm_metrics import VLLM_METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-vllm.md").read_text("utf-8")
SECTIONS = dict(
    zip(*[iter(re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)[1:])] * 2, strict=True)
)
OPTIONS = all_options()


def names(text, pattern):
    """Return what matches a pattern in the code spans of a text."""
    return {
        found for span in re.findall(r"`([^`\n]+)`", text) for found in re.findall(pattern, span)
    }


def test_metrics_exist_and_all_of_vllms_are_there():
    section = SECTIONS["Metrics"]
    assert names(section, r"quire_\w+") <= {metric.name for metric in QUIRE_METRICS}
    assert names(section, r"vllm:\w+") == {metric.name for metric in VLLM_METRICS}


def test_variables_exist():
    known = {option.variable for option in OPTIONS} | OTHER_VARIABLES | {LEVEL_VARIABLE}
    assert names(SECTIONS["Environment variables"], r"QUIRE_\w+") - {"QUIRE_"} <= known


def test_commands_exist():
    found = names(PAGE, r"\bquire ([a-z-]+)(?: ([a-z]+))?")
    assert {("serve", ""), ("run-batch", ""), ("bench", "startup")} <= found
    for command, action in found:
        assert command in COMMANDS
        if actions := COMMANDS[command].actions:
            assert action in actions


def test_flags_with_the_same_name_exist():
    same, _, others = SECTIONS["Flags"].partition("<!-- [[[cog")
    flags = {flag for path in (["serve"], ["worker"]) for flag in parser_of(path).flags}
    shown_as_wrong = {"--num-gpu-blocks-override", "--no-"}
    assert names(same, r"--[a-z-]+") - shown_as_wrong <= flags
    assert "--speculative-config" in others


def test_methods_exist():
    for line in SECTIONS["In Python"].splitlines():
        if line.startswith("| `"):
            _, theirs, ours, _ = line.split("|")
            text = theirs if "[the same]" in ours else ours
            for owner, method in names(text, r"\b(LLM|AsyncEngine)\.(\w+)"):
                assert method in dir(getattr(quire, owner)), method


def test_fields_that_it_names_are_handled_as_it_says():
    (chat,) = (table for table in FIELD_TABLES if table.operation.endswith("/chat/completions"))
    rows = {row.name: row.handling for row in chat.rows()}
    assert rows["vllm_xargs"] == rows["watermarking"] == rows["chat_template"] == "refused"
    assert {rows[name] for name in ("stop_regex", "best_of", "timeout_s")} == {"honoured"}


def test_routes_that_are_the_same_exist():
    row = next(line for line in SECTIONS["Routes"].splitlines() if "[the same]" in line)
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text("utf-8")
    assert {route for route in names(row, r"/[\w/.]+") if f"{route}`" not in page} == set()
