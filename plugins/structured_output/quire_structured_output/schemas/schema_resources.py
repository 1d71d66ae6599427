"""Draft, ids, anchors and references of a JSON schema; nothing is fetched."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, UnknownDialect, specification_with

from quire.errors import GrammarError

LONE_REFERENCES = frozenset({"draft-03", "draft-04", "draft-06", "draft-07"})
MALFORMED = (
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    IndexError,
)  # what `referencing` raises


class SchemaResources:
    """The parts of a schema that references lead to.

    Args:
        root: The whole schema.

    Attributes:
        draft: Name of the draft that it is written for.
        has_lone_references: Whether what is beside a `$ref` does not count.
    """

    def __init__(self, root: Mapping[str, Any] | bool) -> None:
        self._root = root
        self._spec = DRAFT202012
        self._num_dynamic: dict[str, int] = {}  # anchors by name
        if not isinstance(root, bool):
            with contextlib.suppress(UnknownDialect):
                self._spec = specification_with(str(root.get("$schema", "")), default=DRAFT202012)
            self._count_dynamic(root)
        self.draft: str = self._spec.name
        self.has_lone_references = self.draft in LONE_REFERENCES

    def _count_dynamic(self, root: Mapping[str, Any]) -> None:
        waiting: list[Any] = [root]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                waiting += each.values()
                anchor = each.get("$dynamicAnchor")
                if isinstance(anchor, str):
                    self._num_dynamic[anchor] = self._num_dynamic.get(anchor, 0) + 1
                if each.get("$recursiveAnchor") is True:
                    self._num_dynamic["#"] = self._num_dynamic.get("#", 0) + 1
            elif isinstance(each, list):
                waiting += [part for part in each if isinstance(part, dict | list)]

    def is_static(self, anchor: str) -> bool:
        """Return whether a dynamic anchor occurs once, so that a reference to it is static."""
        return self._num_dynamic.get(anchor, 0) <= 1

    def resolver(self) -> Any:
        """Return the resolver of the root, whose ids and anchors are known once and for all.

        Raises:
            GrammarError: The root's id is not one.
        """
        try:
            resource = self._spec.create_resource(self._root)
            uri = resource.id() or ""
            registry: Any = Registry().with_resource(uri, resource)
        except MALFORMED as error:
            raise GrammarError(f"the id of the JSON schema is not one: {error}") from None
        with contextlib.suppress(*MALFORMED):  # a lookup that needs the malformed part raises again
            registry = registry.crawl()
        return registry.resolver(uri)

    def inner_resolver(self, schema: Mapping[str, Any], resolver: Any, path: str) -> Any:
        """Return the resolver of the references in a schema at `path`, which may have an id.

        Args:
            schema: The schema.
            resolver: Resolver of the references around it.
            path: Its path.

        Raises:
            GrammarError: Its id is not one.
        """
        identifier = self._spec.id_of(schema)
        if identifier is None:
            return resolver
        try:
            return resolver.in_subresource(self._spec.create_resource(schema))
        except MALFORMED as error:
            raise GrammarError(f"the id {identifier!r:.100} at {path}: {error}") from None

    def target(self, reference: Any, resolver: Any, path: str) -> tuple[Any, Any]:
        """Return the schema that a reference at `path` leads to, and the resolver for it.

        Raises:
            GrammarError: It is not a reference, or leads out of the schema.
        """
        if not isinstance(reference, str):
            raise GrammarError(f"'$ref' at {path or '/'} must be a string")
        try:
            resolved = resolver.lookup(reference)
        except (Unresolvable, *MALFORMED):
            raise GrammarError(
                f"'$ref' at {path or '/'} leads to {reference!r:.200}, which is not in the schema; "
                "nothing is fetched, so put it into '$defs'"
            ) from None
        return resolved.contents, resolved.resolver
