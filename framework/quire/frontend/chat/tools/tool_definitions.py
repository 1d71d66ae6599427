"""Structs of tools, and of a choice among them, in OpenAI's format."""

from typing import Any, Literal

import msgspec


class Function(msgspec.Struct, kw_only=True, rename={"returned": "return"}):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    returned: Any = None  # of transformers' schemas; for the template
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool of the type function."""

    type: str
    function: Function


class CustomGrammar(msgspec.Struct):
    """A grammar of the input of a custom tool."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomToolDefinition(msgspec.Struct):
    """A tool whose input is a text."""

    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class CustomTool(msgspec.Struct):
    """A tool of the type custom."""

    type: str
    custom: CustomToolDefinition


class AllowedTools(msgspec.Struct):
    """A choice among some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]  # each names one of the tools
