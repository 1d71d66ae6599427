"""Structural tags: free text, and structures that begin where a trigger has been written.

A tag is a tree of formats (`tag`, `triggered_tags`, `sequence`, ...) in the notation of xgrammar,
which vLLM's clients use, or in its older one of `structures` and `triggers`. It becomes a grammar
in llguidance's dialect of Lark. Free text ends at the first trigger, wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.gbnf.gbnf_lark import lark_of_gbnf
from quire_structured_output.llguidance.grammar_parts import (
    ANY_TEXT,
    ANYTHING,
    Part,
    constant,
    one_of,
    pattern,
    sequence,
    until,
    without,
)
from quire_structured_output.llguidance.lark_syntax import check_length, is_gbnf
from quire_structured_output.llguidance.lark_writing import in_slashes, json_part, literal
from quire_structured_output.llguidance.tag_fields import (
    MAX_CHARACTERS,
    MAX_FORMATS,
    Format,
    TagFields,
    check_fields,
    flag,
    items,
    parsed,
)
from quire_structured_output.regex_syntax import check_regex, without_anchors

MAX_DEPTH = 16
DIGITS = tuple("0123456789.eE")  # a number that could end may go on with them
BEGINNINGS = {  # of JSON, by its type
    "object": ("{",), "array": ("[",), "string": ('"',), "boolean": ("t", "f"), "null": ("n",),
    "number": tuple("-0123456789"), "integer": tuple("-0123456789"),
}  # fmt: skip


def lark_of_tag(tag: Format | str, normal_form: Callable[[Any], dict[str, Any]]) -> str:
    """Return the grammar of a structural tag.

    Args:
        tag: The tag, or its JSON text.
        normal_form: Function that returns the normal form of a JSON schema in it.

    Raises:
        GrammarError: It is not a structural tag, is too large, or has a part that cannot be
            followed exactly; the message names it.
    """
    given = parsed(tag)
    check_fields(given, "structural_tag", ("type", "format", "structures", "triggers"))
    if ("format" in given) == ("structures" in given):
        raise GrammarError("structural_tag has either 'format', or 'structures' and 'triggers'")
    if "format" in given:
        check_fields(given, "structural_tag", ("type", "format"))
        return lark_of_format(given["format"], "structural_tag/format", normal_form)
    return lark_of_format(_newer(given), "structural_tag", normal_form)


def lark_of_format(given: Any, where: str, normal_form: Callable[[Any], dict[str, Any]]) -> str:
    """Return the grammar of one format of a structural tag.

    Args:
        given: The format.
        where: Path of the format, for errors.
        normal_form: Function that returns the normal form of a JSON schema in it.

    Raises:
        GrammarError: It is no format, or cannot be followed exactly; the message names the part.
    """
    writer = _Writer(normal_form)
    return writer.grammar(writer.part(given, where, 0))


def _newer(given: Format) -> Format:
    """Return the format that `structures` and `triggers` stand for."""
    tags = []
    for i, structure in enumerate(items(given, "structures", "structural_tag")):
        where = f"structural_tag/structures/{i}"
        check_fields(structure, where, ("begin", "schema", "end"))
        if "schema" not in structure:
            raise GrammarError(f"{where} has no 'schema'")
        content = {"type": "json_schema", "json_schema": structure["schema"]}
        tags.append({**structure, "content": content})
        del tags[-1]["schema"]
    return {"type": "triggered_tags", "triggers": given.get("triggers"), "tags": tags}


class _Writer:
    """State of the translation of one structural tag."""

    def __init__(self, normal_form: Callable[[Any], dict[str, Any]]) -> None:
        self._normal_form = normal_form
        self._rules: list[str] = []
        self._fields = TagFields()
        self._num_formats = 0
        self._formats: dict[str, Callable[[Format, str, int, tuple[str, ...]], Part]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "any_text": self._any_text,
            "regex": self._regex,
            "grammar": self._grammar,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def grammar(self, part: Part) -> str:
        """Return the whole grammar, whose texts are those of a part."""
        return "\n".join([f"start: {self._in_rule(part)}", *self._rules])

    def part(self, given: Any, where: str, depth: int, ends: tuple[str, ...] = ()) -> Part:
        """Return the part of the grammar for a format, and one of `ends` after it."""
        if not isinstance(given, dict) or given.get("type") not in self._formats:
            kind = given.get("type") if isinstance(given, dict) else given
            raise GrammarError(
                f"the type at {where} must be one of {', '.join(self._formats)}; got {kind!r:.80}"
            )
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS or depth > MAX_DEPTH:
            raise GrammarError(
                f"structural_tag has more than {MAX_FORMATS} formats, or is nested more than "
                f"{MAX_DEPTH} deep, at {where}"
            )
        found = self._formats[given["type"]](given, where, depth, ends)
        return found if found.is_terminal else self._named(found)

    def _named(self, part: Part) -> Part:
        """Return a part that is a rule of its own, so that its text is written once."""
        self._rules.append(f"part{len(self._rules)}: {part.text}")
        return replace(part, text=f"part{len(self._rules) - 1}")

    def _in_rule(self, part: Part) -> str:
        """Return a part as it is written in a rule: a terminal by name."""
        if not part.is_terminal or part.text == '""':
            return part.text
        name = f"TEXT{len(self._rules)}"
        self._rules.append(f"{name}: {part.text}")
        return f"{name}?" if part.may_be_empty else name

    def _as_rule(self, part: Part) -> Part:
        return replace(part, text=self._in_rule(part), is_terminal=False)

    # --- texts --------------------------------------------------------------------------------

    def _const_string(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        del depth
        check_fields(given, where, ("type", "value"))
        value = self._fields.word(given, "value", where, MAX_CHARACTERS)
        return self._ended(constant(value), ends, where)

    def _any_text(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        del depth
        check_fields(given, where, ("type", "excludes"))
        excludes = self._fields.words(given, "excludes", where) if "excludes" in given else []
        return self._ended(pattern(without(excludes)), ends, where)

    def _regex(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        del depth
        check_fields(given, where, ("type", "pattern"))
        expression = self._fields.word(given, "pattern", where, MAX_CHARACTERS)
        check_regex(expression, f"the regex at {where}")
        text = f"/{in_slashes(without_anchors(expression))}/"
        return self._ended(pattern(text), ends, where)

    def _grammar(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        """Return a grammar and one of its ends, which are divided into terminals together."""
        del depth
        check_fields(given, where, ("type", "grammar"))
        text = self._fields.word(given, "grammar", where, MAX_CHARACTERS)
        check_length(text)
        if not is_gbnf(text):
            raise GrammarError(f"the grammar at {where} must be in GBNF: root ::= ...")
        name = f"grammar{len(self._rules)}_"
        self._rules.append(lark_of_gbnf(text, name, ends))
        return Part(f"{name}start", ANYTHING, ANYTHING, may_be_empty=not ends)

    def _ended(self, part: Part, ends: tuple[str, ...], where: str) -> Part:
        """Return a part and one of its ends; a terminal that could go on ends at the first one."""
        if not ends:
            return part
        if part.is_terminal and part.more:
            return until(part.text, ends, ends)
        return self._followed([part, one_of([constant(end) for end in ends], where)], where)

    def _followed(self, parts: Sequence[Part], where: str) -> Part:
        """Return parts one after another; terminals are joined."""
        joined: list[Part] = []
        for part in parts:
            if joined and joined[-1].is_terminal and part.is_terminal:
                joined[-1] = sequence([joined[-1], part], where)
            else:
                joined.append(part)
        if len(joined) > 1:
            joined = [self._as_rule(part) for part in joined]
        return sequence(joined, where)

    def _either(self, parts: Sequence[Part], where: str) -> Part:
        """Return alternatives; terminals are joined."""
        if not all(part.is_terminal for part in parts):
            terminals = [part for part in parts if part.is_terminal]
            rules = [part for part in parts if not part.is_terminal]
            parts = [*rules, *([self._as_rule(one_of(terminals, where))] if terminals else [])]
        return one_of(parts, where)

    # --- structures ---------------------------------------------------------------------------

    def _json_schema(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        del depth
        check_fields(given, where, ("type", "json_schema", "style"))
        if "json_schema" not in given:
            raise GrammarError(f"the format at {where} has no 'json_schema'")
        if given.get("style", "json") != "json":
            raise GrammarError(f"the style at {where} must be 'json'")
        try:
            schema = self._normal_form(given["json_schema"])
        except GrammarError as error:
            raise GrammarError(f"the schema at {where}: {error}") from error
        types = _types_of(schema)
        beginnings = dict.fromkeys(
            each for name, starts in BEGINNINGS.items() if name in types for each in starts
        )
        more = DIGITS if types & {"number", "integer"} else ()
        return self._ended(
            self._named(Part(json_part(schema), tuple(beginnings), more)), ends, where
        )

    def _sequence(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        check_fields(given, where, ("type", "elements"))
        elements = items(given, "elements", where)
        parts = [
            self.part(
                element,
                f"{where}/elements/{i}",
                depth + 1,
                ends if i == len(elements) - 1 else (),
            )
            for i, element in enumerate(elements)
        ]
        return self._followed(parts, where)

    def _or(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        check_fields(given, where, ("type", "elements"))
        elements = items(given, "elements", where)
        parts = [
            self.part(element, f"{where}/elements/{i}", depth + 1, ends)
            for i, element in enumerate(elements)
        ]
        return self._either(parts, where)

    def _tag(
        self, given: Format, where: str, depth: int, ends: tuple[str, ...], *, written: str = ""
    ) -> Part:
        """Return a tag, without the beginning of it that is `written` already."""
        check_fields(given, where, ("type", "begin", "content", "end"))
        begin = self._fields.word(given, "begin", where)
        own = tuple(self._fields.words(given, "end", where))
        if "content" not in given:
            raise GrammarError(f"the tag at {where} has no 'content'")
        content = self.part(given["content"], f"{where}/content", depth + 1, own or ends)
        parts = [constant(begin[len(written) :]), content]
        if own and ends:
            parts.append(one_of([constant(end) for end in ends], where))
        return self._followed(parts, where)

    def _tags(self, given: Format, where: str) -> list[Format]:
        tags = items(given, "tags", where)
        for i, tag in enumerate(tags):
            if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
                raise GrammarError(f"{where}/tags/{i} must be a tag")
        return tags

    def _tags_with_separator(
        self, given: Format, where: str, depth: int, ends: tuple[str, ...]
    ) -> Part:
        check_fields(
            given, where, ("type", "tags", "separator", "at_least_one", "stop_after_first")
        )
        separator = constant(self._fields.word(given, "separator", where))
        tags = self._tags(given, where)
        parts = [self._tag(tag, f"{where}/tags/{i}", depth + 1, ()) for i, tag in enumerate(tags)]
        tag = self._named(self._as_rule(self._either(parts, where)))
        if not flag(given, "stop_after_first", where):
            again = self._followed([separator, tag], where)
            sequence([tag, again], where)  # a tag must not go on with the separator
            tag = replace(
                tag, text=f"({tag.text} ({again.text})*)", more=tag.more + again.beginnings
            )
        if not flag(given, "at_least_one", where):
            tag = replace(tag, text=f"({tag.text})?", may_be_empty=True)
        return self._ended(tag, ends, where)

    def _triggered_tags(self, given: Format, where: str, depth: int, ends: tuple[str, ...]) -> Part:
        known = ("type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes")
        check_fields(given, where, known)
        triggers = list(dict.fromkeys(self._fields.words(given, "triggers", where)))
        excludes = self._fields.words(given, "excludes", where) if "excludes" in given else []
        tags = self._tags(given, where)
        _check_triggers(triggers, tags, [*ends, *excludes], where)
        chunks, whole = [], []
        for trigger in triggers:
            own = [
                (tag, f"{where}/tags/{i}")
                for i, tag in enumerate(tags)
                if tag["begin"].startswith(trigger)
            ]
            rests = [self._tag(tag, at, depth + 1, (), written=trigger) for tag, at in own]
            rest = self._as_rule(self._either(rests, where))
            sequence([rest, Part(ANY_TEXT, ANYTHING)], where)  # a tag must not go on with text
            text = self._in_rule(until(without(excludes), [*triggers, *ends], [trigger]))
            chunks.append(f"{text} {rest.text}")
            whole.append(f"{literal(trigger)} {rest.text}")
        return self._free(given, where, ends, (chunks, whole), [*triggers, *ends], excludes)

    def _free(
        self,
        given: Format,
        where: str,
        ends: tuple[str, ...],
        tags: tuple[list[str], list[str]],
        events: list[str],
        excludes: list[str],
    ) -> Part:
        """Return free text with tags in it, each given with the text before it and without."""
        if ends:
            tail = self._in_rule(until(without(excludes), events, ends))
            end = " (" + " | ".join(map(literal, ends)) + ")"
        else:
            tail, end = self._in_rule(pattern(without([*events, *excludes]))), ""
        chunk, whole = (self._named(Part(" | ".join(each), ANYTHING)).text for each in tags)
        is_first = flag(given, "at_least_one", where)
        is_last = flag(given, "stop_after_first", where)
        if is_last:
            text = f"({whole}{end})" if is_first else f"({chunk}{end} | {tail})"
        else:
            text = f"({whole} {chunk}* {tail})" if is_first else f"({chunk}* {tail})"
        return Part(
            text,
            ANYTHING,
            () if ends or (is_first and is_last) else ANYTHING,
            may_be_empty=not ends and not is_first,
        )


def _check_triggers(
    triggers: Sequence[str], tags: Sequence[Format], others: Sequence[str], where: str
) -> None:
    """Check that each tag has one trigger, each trigger a tag, and none is in another text."""
    if not triggers:
        raise GrammarError(f"'triggers' at {where} is empty; each tag needs one")
    words = [*triggers, *others]
    for i, first in enumerate(words):
        for k, second in enumerate(words):
            if i != k and first in second:
                raise GrammarError(
                    f"{first!r:.80} at {where} is in {second!r:.80}: of triggers, ends and "
                    "excluded texts none may be in another, as free text ends at the first one"
                )
    for i, tag in enumerate(tags):
        begin = tag.get("begin")
        if not isinstance(begin, str) or not begin:
            raise GrammarError(f"the 'begin' at {where}/tags/{i} must be a text that is not empty")
        if not any(begin.startswith(trigger) for trigger in triggers):
            raise GrammarError(f"no trigger at {where} is the beginning of {begin!r:.80}")
    for trigger in triggers:
        if not any(tag["begin"].startswith(trigger) for tag in tags):
            raise GrammarError(f"no tag at {where} begins with the trigger {trigger!r:.80}")


def _types_of(schema: dict[str, Any]) -> set[str]:
    """Return the types that values of a schema in normal form may have."""
    for _ in range(MAX_DEPTH):
        if set(schema) - {"$defs"} != {"$ref"}:
            break
        defs = schema.get("$defs", {})
        target = defs.get(schema["$ref"].rpartition("/")[2])
        if not isinstance(target, dict):
            break
        schema = {**target, "$defs": defs}
    named = schema.get("type")
    if named is None:
        return set(BEGINNINGS)
    return {named} if isinstance(named, str) else set(named)
