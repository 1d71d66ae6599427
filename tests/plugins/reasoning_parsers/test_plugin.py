"""The registration of the plugin imports nothing heavy and is right."""

import subprocess
import sys

import pytest

from quire.interfaces.reasoning import ReasoningParser, ReasoningParserCapabilities
from quire.plugins.kinds import KINDS
from quire.plugins.registry import Registrar, Source, import_reference
from quire_reasoning_parsers import families, plugin

NAMES = {
    "deepseek_r1", "deepseek_v3", "ernie45", "gemma4", "glm45", "granite", "holo2", "hunyuan_a13b",
    "kimi_k2", "minimax_m2", "minimax_m2_append_think", "mistral", "nemotron_v3", "olmo3",
    "openai_gptoss", "qwen3", "seed_oss", "step3", "think_tags",
}  # fmt: skip


def entries():
    kind = next(kind for kind in KINDS if kind.name == "reasoning_parsers")
    registrar = Registrar(kind, Source("quire_reasoning_parsers", "quire", "0"))
    plugin.register_reasoning_parsers(registry=registrar)
    return {entry.name: entry for entry in registrar.entries}


def test_every_family_is_offered_and_can_be_imported():
    offered = entries()
    assert offered.keys() >= NAMES
    for name, entry in offered.items():
        parser = import_reference(entry.reference, "the parser")
        assert issubclass(parser, ReasoningParser)
        if name.startswith("."):
            continue  # a reader of users' files
        assert parser("").feed("") == []
        assert entry.capabilities.end_marker, name


def test_markers_that_may_be_special_tokens_are_shown_to_the_parser():
    assert entries()["mistral"].capabilities.markers == (
        "[THINK]", "<think>", "[/THINK]", "</think>",
    )  # fmt: skip
    assert "<answer>" in entries()["hunyuan_a13b"].capabilities.markers


def test_constraints_begin_after_the_closing_tag_or_at_once_by_default():
    assert entries()["think_tags"].capabilities.end_marker == "</think>"
    assert entries()["mistral"].capabilities.end_spellings == ("</think>",)
    assert ReasoningParserCapabilities().end_marker is None


def test_a_family_that_does_not_exist_is_no_attribute():
    with pytest.raises(AttributeError, match="no family 'qwen9'"):
        families.qwen9  # noqa: B018


def test_the_table_of_contents_is_light():
    program = (
        "import sys, quire_reasoning_parsers.plugin as _;"
        "print(*{'torch', 'quire_reasoning_parsers.tag_parser'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""
