"""Parsers of completions and their choices, as tests need them."""

from quire.frontend.chat.parsing.completion_parser import CompletionParser
from quire.frontend.chat.parsing.completion_parsers import ParserChoice
from quire.frontend.chat.parsing.reasoning_stage import ReasoningStage
from quire.frontend.chat.parsing.tool_stage import ToolStage
from quire.interfaces.reasoning import ReasoningParserCapabilities
from quire.interfaces.tool_parsing import ToolParserCapabilities


def parser_of(reasoning=None, tools=None, **options):
    """Return a parser of one completion with parsers that no plugin provides."""
    stage = None
    if reasoning is not None:
        stage = ReasoningStage(type(reasoning), reasoning.prompt_text)
    return CompletionParser(stage, ToolStage(tools), **options)


def thinking(parser, source, **capabilities):
    """Return the choice of a reasoning parser."""
    return ParserChoice(parser, source, ReasoningParserCapabilities(**capabilities))


def calling(parser, source, **capabilities):
    """Return the choice of a tool parser."""
    return ParserChoice(parser, source, ToolParserCapabilities(**capabilities))
