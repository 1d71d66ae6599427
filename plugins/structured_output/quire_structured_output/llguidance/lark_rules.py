"""Rules and terminals of a grammar under construction, each expression written once."""

from collections.abc import Sequence

from quire_structured_output.llguidance.lark_writing import literal
from quire_structured_output.llguidance.special_tokens import SpecialTokens


class LarkRules:
    """Names of expressions in llguidance's dialect of Lark.

    Args:
        special_tokens: Special tokens of the tokenizer, which are matched by their ids.
    """

    def __init__(self, special_tokens: SpecialTokens) -> None:
        self.special_tokens = special_tokens
        self._names: dict[str, str] = {}

    def grammar(self, start: str) -> str:
        """Return the whole grammar."""
        rules = [f"{name}: {text}" for text, name in self._names.items()]
        return "\n".join([f"start: {start}", *rules])

    def rule(self, expression: str) -> str:
        """Return the name of the rule of an expression; of a name the name."""
        if not expression or expression == '""' or expression.isidentifier():
            return expression
        return self._names.setdefault(expression, f"part{len(self._names)}")

    def terminal(self, expression: str) -> str:
        """Return the name of the terminal of an expression."""
        return self._names.setdefault(expression, f"TEXT{len(self._names)}")

    def text(self, text: str) -> str:
        """Return the expression of a literal text, in which special tokens are their ids."""
        return self.parts(self.special_tokens.split(text))

    def parts(self, parts: Sequence[str | int]) -> str:
        """Return the expression of literal texts and ids of special tokens."""
        return " ".join(literal(part) if isinstance(part, str) else f"<[{part}]>" for part in parts)

    def split_at_special_token(self, text: str) -> tuple[str, str]:
        """Return a text up to the first special token, and the expression of the rest."""
        parts = self.special_tokens.split(text)
        first = parts[0] if parts and isinstance(parts[0], str) else ""
        return first, self.text(text[len(first) :])
