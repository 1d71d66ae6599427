"""Free text around tool calls: it ends where a trigger begins calls.

Special tokens of the tokenizer may be in it, except those that begin calls.
"""

from collections.abc import Sequence

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, Piece, SchemaPiece
from quire_structured_output.llguidance.grammar_parts import (
    ANY_TEXT,
    SOME_TEXT,
    until,
    without,
    words,
)
from quire_structured_output.llguidance.lark_rules import LarkRules

BLANKS = "/[ \\t\\r\\n]*/"
_WITH_AN_END = ("object", "array", "string")


def check_triggers(calls: CallGrammar) -> None:
    """Check that calls begin with triggers, and end with a text that cannot go on.

    Raises:
        GrammarError: They do not; the message names the tool or the trigger.
    """
    beginnings = [("the section of calls", calls.begin)] if calls.begin else []
    for shape in calls.shapes:
        what = f"a call of the tool {shape.tool!r:.80}"
        first = shape.pieces[0] if shape.pieces else None
        if not calls.begin:
            if not isinstance(first, str) or not first:
                raise GrammarError(f"{what} does not begin with a text")
            beginnings.append((what, first))
        if not shape.pieces or _may_go_on(shape.pieces[-1]):
            raise GrammarError(f"{what} does not end with a text or a JSON object")
    for what, first in beginnings:
        if not first.startswith(calls.triggers):
            raise GrammarError(f"{what} begins with no trigger: {first!r:.80}")
    _check_words(calls, [first for _, first in beginnings])


def _may_go_on(last: Piece) -> bool:
    """Whether a piece, where it could end, could also go on with a text."""
    if not isinstance(last, SchemaPiece):
        return False
    return isinstance(last.schema, bool) or last.schema.get("type") not in _WITH_AN_END


def _check_words(calls: CallGrammar, beginnings: Sequence[str]) -> None:
    every = list(dict.fromkeys([*calls.triggers, *calls.excluded]))
    for trigger in calls.triggers:
        if not calls.is_at_start and not any(each.startswith(trigger) for each in beginnings):
            raise GrammarError(f"no call begins with the trigger {trigger!r:.80}")
        for other in every:
            if trigger != other and trigger in other:
                raise GrammarError(
                    f"{trigger!r:.80} is in {other!r:.80}: of triggers and excluded texts none may "
                    "be in another, as free text ends at the first one"
                )


class FreeText:
    """Writer of the rules of free text around calls.

    Args:
        calls: Grammar of the calls, with triggers.
        rules: Rules of the grammar.
    """

    def __init__(self, calls: CallGrammar, rules: LarkRules) -> None:
        self._calls = calls
        self._rules = rules
        self._words = list(dict.fromkeys([*calls.triggers, *calls.excluded]))
        split = rules.special_tokens.split
        used = {part for word in self._words for part in split(word) if isinstance(part, int)}
        self._other = rules.special_tokens.others(used)
        self._text = f"{rules.terminal(without(self._words))}?"
        self._head = rules.rule(f"({self._text} {self._other})*") if self._other else ""

    def before(self, trigger: str, section: str) -> str:
        """Return the expression of text, a trigger, and calls behind the trigger."""
        marker, rest = self._rules.split_at_special_token(trigger)
        if not rest:
            text = self._rules.terminal(until(without([]), self._words, [trigger]).text)
        elif marker:
            text = self._rules.terminal(f"({ANY_TEXT} {words([marker])}) & {without(self._words)}")
        else:
            text = self._text
        return self._rules.rule(" ".join(filter(None, [self._head, text, rest, section])))

    def with_sections(self, sections: Sequence[str]) -> str:
        """Return the expression of text with any number of sections, or one at most."""
        tail = f"{self._head} {self._text}".strip()
        section = self._rules.rule(" | ".join(sections))
        if self._calls.separator is None:
            return f"{section} | {tail}"
        return f"{section}* {tail}"

    def other(self) -> str:
        """Return the expression of text that does not begin with a trigger, nor as a call does.

        A text that is cut before it could begin with one is text as well.
        """
        excluded = self._calls.excluded
        split = self._rules.special_tokens.split
        firsts = [shape.pieces[0] for shape in self._calls.shapes if shape.pieces]
        texts = [*self._calls.triggers, *(each for each in firsts if isinstance(each, str))]
        spelled = [each for each in dict.fromkeys(texts) if isinstance(split(each)[0], str)]
        start = f"({BLANKS} {words(spelled)} {ANY_TEXT})"
        text = f"{without(excluded)} & ~{start}" if spelled else without(excluded)
        first = f"{self._rules.terminal(text)}?"
        if not self._other:
            return first
        later = f"{self._rules.terminal(without(excluded) if excluded else SOME_TEXT)}?"
        return f"{first} ({self._other} {later})*"
