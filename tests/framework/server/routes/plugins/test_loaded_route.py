"""Only named routes are served, and a named one that cannot be served stops the start."""

import msgspec
import pytest
from route_parts import KIND, loaded

from quire.config import ServerSettings
from quire.errors import (
    ContestedNameError,
    PluginError,
    PluginLoadError,
    SettingsError,
    UnknownNameError,
)
from quire.interfaces.http_route import HTTPRoute, HTTPRouteCapabilities
from quire.plugins.loading import Registries
from quire.plugins.registry import Registrar, Source
from quire.server.app import create_app
from quire.server.routes.plugins.loaded_route import load_routes

HERE = __name__


class Plain(HTTPRoute):
    """A route without a body."""

    async def respond(self, request):
        return {}


class WithBody(Plain):
    class body(msgspec.Struct):  # noqa: N801 - as the interface has it
        x: int


class WithOther(Plain):
    response = msgspec.defstruct("body", [("y", int)], module=HERE + ".body")


class Odd:
    """A type that is no JSON."""


class OddResponse(msgspec.Struct):
    c: Odd


class WithOdd(Plain):
    response = OddResponse


class NoStruct(Plain):
    body = dict


class Broken(Plain):
    def __init__(self):
        raise RuntimeError("no database")


def registries(*entries):
    """Return registries with routes, each (distribution, name, class, capabilities)."""
    found = Registries()
    for distribution, name, kind, capabilities in entries:
        registrar = Registrar(KIND, Source(distribution, distribution, "1"))
        declared = HTTPRouteCapabilities(**{"path": f"/acme/{name}"} | capabilities)
        registrar.add(name, f"{HERE}:{kind}", capabilities=declared)
        found.routes.accept(registrar.entries)
    return found


def load(found, *names, **settings):
    return load_routes(ServerSettings(routes=names, **settings), found)


def test_a_route_that_is_not_named_is_not_even_imported():
    found = registries(("acme", "one", "Plain", {}), ("acme", "two", "Missing", {}))
    assert load(found) == ()
    (route,) = load(found, "one", "one")
    assert route.capabilities.path == "/acme/one"
    assert str(route) == "HTTP route 'one' of plugin acme (acme 1)"


@pytest.mark.parametrize(
    ("name", "kind", "capabilities", "words"),
    [
        ("one", "Missing", {}, "could not be imported"),
        ("one", "HERE", {}, "is not a subclass of quire.interfaces.http_route.HTTPRoute"),
        ("one", "Broken", {}, "could not be made: RuntimeError: no database"),
        ("one", "WithOdd", {}, "cannot be described in /openapi.json: TypeError"),
        ("one", "NoStruct", {}, "body must be a msgspec.Struct"),
        ("one", "WithBody", {"method": "GET"}, "declares a body, which GET does not have"),
    ],
)
def test_a_named_route_that_cannot_be_served_stops_the_start(name, kind, capabilities, words):
    with pytest.raises(PluginLoadError, match=words):
        load(registries(("acme", name, kind, capabilities)), name)


def test_names_that_nobody_or_several_offer_stop_the_start():
    found = registries(("acme", "one", "Plain", {}), ("other", "one", "Plain", {}))
    with pytest.raises(ContestedNameError, match=r"acme \(acme 1\) and other \(other 1\)"):
        load(found, "one")
    with pytest.raises(UnknownNameError, match="did you mean 'one'"):
        load(found, "ones")
    found.routes.prefer("one", "other")
    (route,) = load(found, "one")
    assert route.entry.source.plugin == "other"


def test_two_named_routes_cannot_have_one_path_and_method():
    path = {"path": "/shared"}
    found = registries(
        ("acme", "one", "Plain", path),
        ("other", "two", "Plain", path),
        ("other", "three", "Plain", path | {"method": "GET"}),
    )
    with pytest.raises(PluginError, match=r"'one' .* and the HTTP route 'two' .* POST /shared"):
        load(found, "one", "two")
    assert len(load(found, "one", "three")) == 2


def test_two_routes_may_share_their_structs_but_not_the_names_of_structs():
    found = registries(
        ("acme", "first", "WithBody", {}),
        ("acme", "second", "WithBody", {"path": "/acme/other"}),
        ("acme", "third", "WithOther", {}),
    )
    assert len(load(found, "first", "second")) == 2
    with pytest.raises(PluginLoadError, match=r"'third'.* cannot be described in /openapi\.json"):
        load(found, "first", "third")


def test_a_route_for_administrators_needs_an_admin_key():
    found = registries(("acme", "one", "Plain", {"is_admin": True}))
    with pytest.raises(SettingsError, match="needs an admin key, and there is none"):
        load(found, "one")
    assert load(found, "one", admin_key=("sk-root",))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions", "/v1/models/acme", "/livez", "/metrics", "/openapi.json",
        "/reset_prefix_cache", "/admin/keys",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_route_cannot_have_one_of_quires_paths(frontend, path, method):
    route = loaded(Plain(), path=path, method=method, generates=False)
    with pytest.raises(PluginError, match="one of quire's own"):
        create_app(frontend, ServerSettings(), list, routes=[route])


@pytest.mark.parametrize(
    "capabilities",
    [
        {"path": "acme"}, {"path": "/"}, {"path": "/acme/"}, {"path": "/a//b"}, {"path": "/a/../b"},
        {"path": "/a?b"}, {"path": "/a/{b}"}, {"path": "/a/%62"}, {"path": None},
        {"path": "/a", "method": "get"}, {"path": "/a", "method": "TRACE"},
        {"path": "/a", "method": "GET", "generates": True},
    ],
)  # fmt: skip
def test_capabilities_that_cannot_be_meant_fail_the_plugin(capabilities):
    with pytest.raises(PluginError, match="HTTP route"):
        HTTPRouteCapabilities(**capabilities)
