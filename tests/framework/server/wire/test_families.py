"""A path belongs to the family whose root it is or is under."""

import pytest

from quire.server.wire.anthropic_dialect import ANTHROPIC
from quire.server.wire.dialect import OPENAI
from quire.server.wire.families import dialect_of


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/v1/messages2", OPENAI),
        ("/v1/chat/completions", OPENAI),
        ("/", OPENAI),
        ("", OPENAI),
    ],
)
def test_a_path_has_the_dialect_of_its_family(path, dialect):
    assert dialect_of(path) is dialect
