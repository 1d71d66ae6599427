"""The format of a model family's calls, as data: which texts mark them, and their notation."""

from typing import Literal

import msgspec

from quire_tool_parsers.call_writing import CallWriting

Notation = Literal["json", "header", "tagged", "python", "braces"]


class JsonKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of a call that is a JSON object.

    Attributes:
        name: Keys of the name.
        arguments: Keys of the arguments.
        is_required: Whether a call without arguments has their key as well.
        first: Keys of which a call has one first; empty: any. So JSON that is no call is passed on
            early where calls have no marker.
        is_name: Whether the only key of a call is the name of the tool, with the arguments as its
            value. Then `name` and `arguments` have no meaning.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    is_required: bool = False
    first: tuple[str, ...] = ()
    is_name: bool = False


class Tags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Markers within a call whose arguments stand between tags.

    Attributes:
        name_close: Marker after the name; empty: the name ends before a blank, or the next marker.
        parameter_open: Markers before the name of an argument.
        key_close: Marker after the name of an argument.
        value_open: Marker before the value, which may be missing; empty: there is none.
        parameter_close: Markers after the value.
        trims_newline: Whether one line break on each side of a value does not belong to it.
        string_attribute: Text behind the name of an argument that is a string; empty: the tool's
            schema says what is one.
        other_attribute: The same of one that is no string.
    """

    parameter_open: tuple[str, ...]
    parameter_close: tuple[str, ...]
    name_close: str = ""
    key_close: str = ">"
    value_open: str = ""
    trims_newline: bool = False
    string_attribute: str = ""
    other_attribute: str = ""


class CallIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ids of calls that the chat template of a family takes; any by default.

    Attributes:
        length: Number of letters and digits of an id; None: any number.
        text: Text of an id, with `{name}` and `{number}` for the name of the tool and the number of
            calls before it; empty: it is free.
    """

    length: int | None = None
    text: str = ""


class CallFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The format of calls, and what `auto` and the host of a parser need to know of its family.

    A section is what stands around one or several calls; most formats have a marker around each
    call, or around all of them, and some have both.

    Attributes:
        notations: How a call is written: the first one that its first character allows.
        section_open: Markers that open a section; empty: calls stand in the text.
        section_close: Markers that close a section, which may be missing.
        call_open: Markers that open a call; empty: a call begins with its own first character.
        call_close: Markers that close a call, which may be missing. Each may follow those before it
            in the table, with blanks between.
        separators: Texts between two calls, beside blanks.
        is_list: Whether the model writes calls as a JSON list. Calls are read with and without one.
        is_bare: Whether a call may begin without a marker at the start of the text; then its name
            must be that of a tool.
        is_bare_anywhere: Whether a call may begin so behind text as well; only in JSON, and without
            `call_open`.
        keys: Keys of a call in the notation json.
        header: Pattern of the header in the notation header, with a group `name`, and a group `id`
            if the model writes the ids of calls.
        header_markers: Texts in the header that may be special tokens.
        tags: Markers within a call in the notation tagged.
        quote: Marker on both sides of a string in the notation braces.
        aliases: Further names of the parser.
        template_markers: Texts that the chat template must all contain for `auto`.
        alternative_markers: Further sets of template markers, one of which is enough.
        excluded_markers: Texts that the chat template must not contain for `auto`.
        architectures: Architectures of models for which `auto` may choose the parser; empty: all.
        priority: Rank among the parsers that match for `auto`.
        calls_end_reasoning: Whether a call ends the reasoning that it is in; False: calls in the
            reasoning are ignored.
        call_ids: Ids of calls that the chat template takes.
        writing: How the model writes calls, for `tool_choice`; None: calls cannot be forced.
    """

    notations: tuple[Notation, ...] = ("json",)
    section_open: tuple[str, ...] = ()
    section_close: tuple[str, ...] = ()
    call_open: tuple[str, ...] = ()
    call_close: tuple[str, ...] = ()
    separators: tuple[str, ...] = ()
    is_list: bool = False
    is_bare: bool = False
    is_bare_anywhere: bool = False
    keys: JsonKeys = JsonKeys()
    header: str = r"(?P<name>\S+)"
    header_markers: tuple[str, ...] = ()
    tags: Tags | None = None
    quote: str = '"'
    aliases: tuple[str, ...] = ()
    template_markers: tuple[str, ...] = ()
    alternative_markers: tuple[tuple[str, ...], ...] = ()
    excluded_markers: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    priority: int = 10
    calls_end_reasoning: bool = True
    call_ids: CallIds = CallIds()
    writing: CallWriting | None = None

    @property
    def is_name_a_call(self) -> bool:
        """Whether a word between markers is a call, so that prose about calls looks like one."""
        return self.tags is not None and not self.tags.name_close and not self.section_open

    def markers(self) -> tuple[str, ...]:
        """Return the texts of the format that may be or contain special tokens."""
        tags, quotes = self.tags, (self.quote,) if "braces" in self.notations else ()
        within = () if tags is None else (
            tags.name_close, *tags.parameter_open, tags.key_close, tags.value_open,
            *tags.parameter_close,
        )  # fmt: skip
        texts = (
            *self.section_open, *self.section_close, *self.call_open, *self.call_close,
            *self.separators, *self.header_markers, *within, *quotes,
        )  # fmt: skip
        return tuple(dict.fromkeys(text for text in texts if text))
