"""Registration of the reasoning parsers of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.reasoning import ReasoningParser, ReasoningParserCapabilities
from quire_reasoning_parsers.family_table import read_families

HARMONY = ReasoningParserCapabilities(
    template_markers=("<|channel|>", "<|message|>"),
    architectures=("GptOssForCausalLM",),
    priority=2,
    markers=(
        "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>",
        "<|call|>",
    ),
    end_marker="<|channel|>final<|message|>",
    forced_end="<|end|><|start|>assistant<|channel|>final<|message|>",
)  # fmt: skip


@hookimpl
def register_reasoning_parsers(registry: Registrar[type[ReasoningParser]]) -> None:
    """Register the parsers of the table, that of harmony, and the reader of users' tables."""
    registry.add(
        ".toml",
        "quire_reasoning_parsers.format_file:FileParser",
        capabilities=ReasoningParserCapabilities(),
    )
    for name, family in read_families().items():
        reference = f"quire_reasoning_parsers.families:{name}"
        registry.add(name, reference, capabilities=family.capabilities)
    registry.add(
        "openai_gptoss",
        "quire_reasoning_parsers.channel_router:ChannelRouter",
        capabilities=HARMONY,
    )
