"""Registration of the tool-call parsers of this package. Imports nothing heavy."""

from collections.abc import Sequence
from dataclasses import replace

from quire import Registrar, hookimpl
from quire.interfaces.reasoning import ReasoningParser, ReasoningParserCapabilities
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
    call_openers=(" to=functions.", "<|start|>assistant to=", "<|channel|>commentary to=",
                  "<|channel|>analysis to="),
)  # fmt: skip
TEMPLATE = "response_template"  # in the file of a checkpoint, and the name of its parsers
TEMPLATE_TOOLS = f"quire_tool_parsers.{TEMPLATE}.tool_parser:TemplateToolParser"
TEMPLATE_REASONING = f"quire_tool_parsers.{TEMPLATE}.reasoning_parser:TemplateReasoningParser"


@hookimpl
def register_tool_parsers(registry: Registrar[type[ToolParser]]) -> None:
    """Register the parsers of the table, that of harmony, and the reader of users' tables."""
    registry.add(TABLE_SUFFIX, TABLE_READER, capabilities=ToolParserCapabilities())
    for name, form in read_table().items():
        names = (name, *form.aliases)
        _add_names(registry, names, f"{FAMILIES}:{name}", capabilities_of(form))
    _add_names(registry, HARMONY_NAMES, HARMONY, HARMONY_CAPABILITIES)
    described = ToolParserCapabilities(tokenizer_config_key=TEMPLATE)
    registry.add(TEMPLATE, TEMPLATE_TOOLS, capabilities=described)


@hookimpl
def register_reasoning_parsers(registry: Registrar[type[ReasoningParser]]) -> None:
    """Register the parser of a checkpoint's own template, which tells reasoning from calls."""
    described = ReasoningParserCapabilities(tokenizer_config_key=TEMPLATE)
    registry.add(TEMPLATE, TEMPLATE_REASONING, capabilities=described)


def _add_names(
    registry: Registrar[type[ToolParser]],
    names: Sequence[str],
    reference: str,
    capabilities: ToolParserCapabilities,
) -> None:
    """Register a parser by several names; `auto` chooses it by the first one."""
    for number, name in enumerate(names):
        if number == 1:
            capabilities = replace(
                capabilities, template_markers=(), alternative_markers=(), architectures=()
            )
        registry.add(name, reference, capabilities=capabilities)
