"""Fields that the body of another API has in common with that of a chat."""

from collections.abc import Collection
from operator import attrgetter
from typing import Any

import msgspec

from quire.server.wire.protocol import ChatBody


class SharedFields:
    """The fields of a struct that have the names of a chat's, and mean the same.

    Args:
        kind: Struct of the other API's body.
        converted: Fields that have the name of a chat's and mean something else.
    """

    def __init__(self, kind: type[msgspec.Struct], converted: Collection[str]) -> None:
        of_chat = frozenset(ChatBody.__struct_fields__) - frozenset(converted)
        self._names = tuple(name for name in kind.__struct_fields__ if name in of_chat)
        self._values = attrgetter(*self._names)

    def given(self, body: msgspec.Struct) -> dict[str, Any]:
        """Return those that a body sets; few are set, and handing on all takes longer."""
        values = zip(self._names, self._values(body), strict=True)
        return {name: value for name, value in values if value is not None}
