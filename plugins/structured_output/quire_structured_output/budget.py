"""Limits on the cost of translating a structured-output constraint, charged during translation.

Short rules can multiply: optional properties inside optional properties, or a reference that is
followed a thousand times. So each piece of an expression is charged before it is built, and an
excessive one is never built. All schemas of a constraint share one budget.
"""

from quire.errors import GrammarError

MAX_SCHEMA_CHARACTERS = 128 * 1024
MAX_NODES = 4_000  # schemas and subschemas, with references followed
MAX_VALUES = 10_000  # in all enums
MAX_REGEX_LENGTH = 1024 * 1024  # of one piece, the final one included
MAX_WRITTEN = 4 * MAX_REGEX_LENGTH  # of all pieces, intermediate and final
MAX_PATTERNS = 32 * 1024  # characters in all patterns
MAX_COMPARED = 500_000  # characters that `oneOf` checks compare


class Budget:
    """Counters of a translation, checked against the limits."""

    def __init__(self) -> None:
        self._num_read = 0
        self._num_nodes = 0
        self._num_values = 0
        self._num_written = 0
        self._num_in_patterns = 0
        self._num_compared = 0

    def read(self, num_characters: int) -> None:
        """Charge the text of a schema; raises a GrammarError."""
        self._num_read += num_characters
        if self._num_read > MAX_SCHEMA_CHARACTERS:
            raise GrammarError(
                f"the JSON schema has {self._num_read} characters; at most "
                f"{MAX_SCHEMA_CHARACTERS} are allowed"
            )

    def visit(self) -> None:
        """Charge one subschema; raises a GrammarError."""
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise GrammarError(
                f"the JSON schema has more than {MAX_NODES} parts once its references are followed"
            )

    def list_value(self) -> None:
        """Charge a value of an enum, or a part of it; raises a GrammarError."""
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise GrammarError(
                f"the enums of the JSON schema have more than {MAX_VALUES} values once its "
                "references are followed"
            )

    def look_at_pattern(self, num_characters: int) -> None:
        """Charge the check of a pattern; raises a GrammarError."""
        self._num_in_patterns += num_characters
        if self._num_in_patterns > MAX_PATTERNS:
            raise GrammarError(
                f"the patterns of the JSON schema have more than {MAX_PATTERNS} characters together"
            )

    def write(self, num_characters: int) -> None:
        """Charge a piece of an expression before it is built; raises a GrammarError."""
        self._num_written += num_characters
        if num_characters > MAX_REGEX_LENGTH or self._num_written > MAX_WRITTEN:
            raise GrammarError(
                f"the JSON schema becomes a regex of more than {MAX_REGEX_LENGTH} characters; use "
                "fewer properties, or require at least one property in each object"
            )

    def compare(self, num_characters: int) -> None:
        """Charge a comparison of schemas; raises a GrammarError."""
        self._num_compared += num_characters
        if self._num_compared > MAX_COMPARED:
            raise GrammarError(
                "'oneOf' has too many or too large schemas to check that they exclude each other; "
                "use anyOf"
            )
