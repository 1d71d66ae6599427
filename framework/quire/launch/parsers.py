"""Parsers are imported before the weights are loaded: a broken one stops start-up early."""

from typing import Any

from quire.compose.composition import Choice, Composition
from quire.frontend.chat.completion_parser import CompletionParsers, ParserChoice
from quire.frontend.chat.thinking import Thinking
from quire.frontend.text.tokenizer import Tokenizer
from quire.plugins.loading import Registries
from quire.plugins.registry import Registry


def load_parsers(composition: Composition, registries: Registries) -> CompletionParsers:
    """Return what splits answers into thinking, tool calls and text.

    Raises:
        PluginError: A parser cannot be imported.
    """
    return CompletionParsers(
        _load_parser(registries.reasoning_parsers, composition.reasoning_parser),
        _load_parser(registries.tool_parsers, composition.tool_parser),
    )


def make_thinking(
    composition: Composition, parsers: CompletionParsers, tokenizer: Tokenizer
) -> Thinking | None:
    """Return what knows where an answer's thinking ends; None without a reasoning parser."""
    choice = composition.reasoning_parser
    if choice is None or parsers.reasoning is None:
        return None
    return Thinking(parsers.reasoning, choice.entry.capabilities.end_marker, tokenizer)


def _load_parser(registry: Registry[Any], choice: Choice | None) -> ParserChoice[Any] | None:
    if choice is None:
        return None
    return ParserChoice(registry.load(choice.entry), choice.entry.source)
