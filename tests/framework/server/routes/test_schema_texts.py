"""Families of routes, and descriptions of fields, in the API description."""

import sys

import pytest
from asgi_parts import get

from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.routes.schema_texts import OTHER_FAMILY, describe_fields, family_of


def test_fields_take_what_the_docstring_says_of_them():
    schema = {
        "description": "One thing.\n\n    More of it.\n\n    Attributes:\n"
        "        one: The first,\n            in two lines.\n        absent: Nothing.\n    ",
        "properties": {"one": {"type": "string"}, "two": {"type": "integer"}},
    }
    describe_fields(schema)
    assert schema == {
        "description": "One thing.\n\nMore of it.",
        "properties": {
            "one": {"type": "string", "description": "The first, in two lines."},
            "two": {"type": "integer"},
        },
    }


def test_a_schema_without_a_description_stays():
    schema = {"properties": {"one": {"type": "string"}}}
    describe_fields(schema)
    assert schema == {"properties": {"one": {"type": "string"}}}


def test_every_route_has_a_family(frontend):
    app = create_app(frontend, ServerSettings(admin_key=("root",)), list)
    paths = get(app, "/openapi.json").json()["paths"]
    families = {o["tags"][0] for of_path in paths.values() for o in of_path.values()}
    assert OTHER_FAMILY not in families
    assert {"OpenAI", "Control", "Live engine"} <= families


@pytest.mark.skipif(sys.flags.optimize > 1, reason="there are no docstrings")
def test_the_view_of_the_engine_is_described(frontend):
    app = create_app(frontend, ServerSettings(), list)
    schemas = get(app, "/openapi.json").json()["components"]["schemas"]
    for name in ("EngineView", "ReplicaView", "BlockMapView"):
        fields = schemas[name]["properties"]
        assert all("description" in field for field in fields.values()), name
        assert "Attributes" not in schemas[name]["description"]


def test_what_is_unknown_is_other():
    assert family_of("/x") == OTHER_FAMILY
