"""Structs of plugins' routes, of which the bodies refuse fields that they do not declare."""

from functools import cache

import msgspec

from quire.interfaces.http_route import HTTPRoute


@cache  # two structs of one name in one module could not be described
def strict_body(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct that refuses fields that it does not declare; if need be, a derived one."""
    if kind.__struct_config__.forbid_unknown_fields:
        return kind
    return msgspec.defstruct(
        kind.__name__,
        [],
        bases=(kind,),
        module=f"{kind.__module__}.body",  # the description tells it from the plugin's own
        namespace={"__doc__": kind.__doc__},
        forbid_unknown_fields=True,
    )


def structs_of(route: HTTPRoute) -> list[type[msgspec.Struct]]:
    """Return the structs of a route as the API description has them."""
    body = None if route.body is None else strict_body(route.body)
    return [struct for struct in (body, route.response, route.event) if struct is not None]
