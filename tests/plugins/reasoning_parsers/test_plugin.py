"""The registration of the plugin imports nothing heavy and is right."""

import subprocess
import sys

from quire.interfaces.reasoning import ReasoningParserCapabilities
from quire.plugins.kinds import KINDS
from quire.plugins.registry import Registrar, Source, import_reference
from quire_reasoning_parsers import plugin
from quire_reasoning_parsers.think_tags import ThinkTagsParser


def test_think_tags_are_offered_for_templates_with_the_tag():
    kind = next(kind for kind in KINDS if kind.name == "reasoning_parsers")
    registrar = Registrar(kind, Source("quire_reasoning_parsers", "quire", "0"))
    plugin.register_reasoning_parsers(registry=registrar)
    (entry,) = registrar.entries
    assert (entry.name, entry.capabilities.template_markers) == ("think_tags", ("<think>",))
    assert import_reference(entry.reference, "the parser") is ThinkTagsParser


def test_constraints_begin_after_the_closing_tag_or_at_once_by_default():
    kind = next(kind for kind in KINDS if kind.name == "reasoning_parsers")
    registrar = Registrar(kind, Source("quire_reasoning_parsers", "quire", "0"))
    plugin.register_reasoning_parsers(registry=registrar)
    assert registrar.entries[0].capabilities.end_marker == "</think>"
    assert ReasoningParserCapabilities().end_marker is None


def test_the_table_of_contents_is_light():
    program = (
        "import sys, quire_reasoning_parsers.plugin as _;"
        "print(*{'torch', 'quire_reasoning_parsers.think_tags'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""
