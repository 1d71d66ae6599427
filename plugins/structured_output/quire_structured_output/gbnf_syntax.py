r"""Translation of a grammar in GBNF to llguidance's dialect of Lark, character by character.

GBNF has no lexer: "a" [a-z] | "ab" "c" allows "ab". A lexer that takes the longest text would read
"ab" as the beginning of the second alternative, so each terminal that is written here is one
character. The notation is otherwise the same, so tokens are translated one at a time.
"""

import json
import re
from collections.abc import Iterator

from quire.errors import GrammarError

MAX_DEPTH = 200  # of groups
LAST = 0x10FFFF
_TOKEN = re.compile(
    r"(?P<blank>\s+|#[^\n]*)|(?P<name>[A-Za-z0-9_-]+)|(?P<defines>::=)"
    r'|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<chars>\[(?:[^\]\\]|\\.)*\])'
    r"|(?P<times>[*+?]|\{\d{1,10}(?:,\d{0,10})?\})|(?P<bracket>[()])|(?P<or>\|)|(?P<any>\.)",
    re.DOTALL,
)
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([\s\S])|([\s\S])"
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}

_Token = tuple[str, str, int]  # kind, text, position


def lark_of_gbnf(text: str, prefix: str = "") -> str:
    """Return the grammar in Lark, with the rule `start` for `root`; linear in its length.

    Args:
        text: Grammar in GBNF.
        prefix: Beginning of the names of all rules.

    Raises:
        GrammarError: It is not valid, has no rule `root`, or uses a rule that it does not define.
    """
    tokens = list(_tokens(text))
    places = [i for i, token in enumerate(tokens) if token[0] == "defines"]
    if not places or places[0] != 1:
        raise _invalid(text, 0, "it does not begin with a rule 'name ::= ...'")
    names: dict[str, str] = {}
    for i in places:
        kind, name, position = tokens[i - 1]
        if kind != "name" or name in names:
            raise _invalid(text, position, f"{name!r:.80} is not the name of a new rule")
        names[name] = prefix + ("start" if name == "root" else f"rule{len(names)}")
    if "root" not in names:
        raise GrammarError("the grammar has no rule 'root', where every text begins")
    ends = [*(i - 1 for i in places[1:]), len(tokens)]
    bodies = [_body(text, tokens[i + 1 : end], names) for i, end in zip(places, ends, strict=True)]
    rules = zip(names.values(), bodies, strict=True)
    return "\n".join(f"{name}: {body}" for name, body in rules)


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _invalid(text, position, f"{text[position : position + 20]!r} is not understood")
        if found.lastgroup != "blank":
            yield str(found.lastgroup), found[0], position
        position = found.end()


def _body(text: str, tokens: list[_Token], names: dict[str, str]) -> str:
    """Translate what is behind a `::=`."""
    written: list[str] = []
    depth, is_item = 0, False  # whether something is there that can be repeated
    for kind, token, position in tokens:
        if kind == "times" and not is_item:
            raise _invalid(text, position, f"nothing is before the {token!r} that can be repeated")
        if kind == "bracket":
            depth += 1 if token == "(" else -1
            if not 0 <= depth <= MAX_DEPTH:
                raise _invalid(
                    text, position, f"groups are not closed, or nested more than {MAX_DEPTH} deep"
                )
            token = '("" ' if token == "(" else token
        elif kind == "name":
            if token not in names:
                raise _invalid(text, position, f"the rule {token!r:.80} is not defined")
            token = names[token]
        elif kind == "text":
            token = _literal(text, token[1:-1], position)
        elif kind == "chars":
            token = _class(text, token[1:-1], position)
        elif kind == "any":
            token = "/(?s:.)/"
        is_item = kind not in ("or", "times") and token != '("" '
        written.append(token if kind == "times" else f" {token}")
    if depth:
        raise _invalid(text, len(text), "a group is not closed")
    return '""' + "".join(written)


def _literal(text: str, quoted: str, position: int) -> str:
    """Return a text as a group of single characters."""
    chars = [_one(code) for code, _ in _characters(text, quoted, position)]
    return f"({' '.join(chars)})" if len(chars) != 1 else chars[0]


def _one(code: int) -> str:
    return json.dumps(chr(code), ensure_ascii=False) if code else r"/[\x{0}]/"


def _class(text: str, quoted: str, position: int) -> str:
    """Return a class of characters as a regex of one character."""
    is_negated = quoted.startswith("^")
    chars = list(_characters(text, quoted.removeprefix("^"), position))
    ranges, i = [], 0
    while i < len(chars):
        low = high = chars[i][0]
        if i + 2 < len(chars) and chars[i + 1] == (ord("-"), False):
            high, i = chars[i + 2][0], i + 2
        if high < low:
            raise _invalid(text, position, f"a range of [{quoted:.60}] is out of order")
        ranges.append(f"\\x{{{low:x}}}-\\x{{{high:x}}}")
        i += 1
    if not ranges and not is_negated:
        raise _invalid(text, position, "no character is in []")
    return f"/[{'^' if is_negated else ''}{''.join(ranges)}]/" if ranges else "/(?s:.)/"


def _characters(text: str, quoted: str, position: int) -> Iterator[tuple[int, bool]]:
    """Yield the code points of what is between quotes or brackets, and whether each is escaped."""
    for found in _CHARACTER.finditer(quoted):
        code, escaped = next(filter(None, found.groups()[:3]), None), found[4]
        if escaped is not None and escaped.isalnum() and escaped not in _CONTROLS:
            raise _invalid(text, position, f"the escape \\{escaped} has no meaning")
        if code is None:
            yield ord(_CONTROLS.get(escaped, escaped) if escaped else found[5]), bool(escaped)
        elif int(code, 16) > LAST or 0xD800 <= int(code, 16) < 0xE000:
            raise _invalid(text, position, f"{found[0]} is no character")
        else:
            yield int(code, 16), True


def _invalid(text: str, position: int, why: str) -> GrammarError:
    line = text.count("\n", 0, position) + 1
    return GrammarError(f"the GBNF grammar is not valid at line {line}: {why}")
