"""Import of the reasoning and tool-call parsers, before the weights are loaded."""

from typing import Any

from quire.compose.composition import Choice, Composition
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers, ParserChoice
from quire.frontend.chat.parsing.thinking import Thinking
from quire.frontend.text.tokenizer import Tokenizer
from quire.plugins.loading import Registries
from quire.plugins.registry import Registry


def load_parsers(
    composition: Composition, registries: Registries, tokenizer: Tokenizer
) -> CompletionParsers:
    """Import the parsers that split completions into reasoning, tool calls and text.

    Args:
        composition: Composition of the engine.
        registries: Registries of the plugins.
        tokenizer: Tokenizer of the model, whose special tokens the parsers may need to see.

    Raises:
        PluginError: A parser cannot be imported.
    """
    return CompletionParsers(
        _load_parser(registries.reasoning_parsers, composition.reasoning_parser),
        _load_parser(registries.tool_parsers, composition.tool_parser),
        tokenizer.special_token_texts,
    )


def make_thinking(parsers: CompletionParsers, tokenizer: Tokenizer) -> Thinking | None:
    """Return the detector of the end of reasoning; None without a reasoning parser."""
    if parsers.reasoning is None:
        return None
    return Thinking(parsers.reasoning, tokenizer, parsers.tools)


def _load_parser(registry: Registry[Any], choice: Choice | None) -> ParserChoice[Any, Any] | None:
    if choice is None:
        return None
    entry = choice.entry
    title = f"{entry.kind.title} {entry.name!r}"
    return ParserChoice(registry.load(entry), entry.source, entry.capabilities, title)
