"""Registration of the tool-call parsers of this package. Imports nothing heavy."""

from collections.abc import Sequence
from dataclasses import replace

from quire import Registrar, hookimpl
from quire.interfaces.tool_parsing import ToolParser, ToolParserCapabilities
from quire_tool_parsers.family_table import capabilities_of, read_table

FAMILIES = "quire_tool_parsers.families"
TABLE_SUFFIX, TABLE_READER = ".toml", "quire_tool_parsers.format_parser:FormatParser"
HARMONY = "quire_tool_parsers.harmony_parser:HarmonyParser"
HARMONY_NAMES = ("openai", "gpt-oss")
HARMONY_CAPABILITIES = ToolParserCapabilities(
    template_markers=("<|channel|>", "<|call|>"),
    priority=20,
    markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>",
             "<|return|>"),
    calls_end_reasoning=True,
)  # fmt: skip


@hookimpl
def register_tool_parsers(registry: Registrar[type[ToolParser]]) -> None:
    """Register the parsers of the table, that of harmony, and the reader of users' tables."""
    registry.add(TABLE_SUFFIX, TABLE_READER, capabilities=ToolParserCapabilities())
    for name, form in read_table().items():
        names = (name, *form.aliases)
        _add_names(registry, names, f"{FAMILIES}:{name}", capabilities_of(form))
    _add_names(registry, HARMONY_NAMES, HARMONY, HARMONY_CAPABILITIES)


def _add_names(
    registry: Registrar[type[ToolParser]],
    names: Sequence[str],
    reference: str,
    capabilities: ToolParserCapabilities,
) -> None:
    """Register a parser by several names; `auto` chooses it by the first one."""
    for number, name in enumerate(names):
        if number == 1:
            capabilities = replace(capabilities, template_markers=(), architectures=())
        registry.add(name, reference, capabilities=capabilities)
