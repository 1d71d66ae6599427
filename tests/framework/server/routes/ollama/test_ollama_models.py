"""What Ollama's clients read of models: names, details, capabilities and the version."""

import pytest
from asgi_parts import get, post

from quire import __version__
from quire.config import ServerSettings
from quire.server.app import create_app


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), list)


def test_tags_and_ps_list_the_model_and_its_adapters(app):
    tags, ps = get(app, "/api/tags").json()["models"], get(app, "/api/ps").json()["models"]
    assert [each["name"] for each in tags] == ["demo:latest", "pirate:latest"]
    assert [each["model"] for each in ps] == ["demo:latest", "pirate:latest"]
    assert tags[1]["digest"] == "c0ffee"
    assert tags[1]["details"]["parent_model"] == "demo"
    assert {each["context_length"] for each in ps} == {512}


@pytest.mark.parametrize("name", ["demo", "demo:latest", "pirate"])
def test_show_tells_what_a_model_can(app, name):
    shown = post(app, "/api/show", model=name).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert "messages" in shown["template"]
    assert post(app, "/api/show", name=name, verbose=True).json() == shown


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "dmo"}, 404, "did you mean 'demo'"),
        ({}, 400, "model is missing"),
        ({"modle": "demo"}, 400, "did you mean 'model'"),
    ],
)
def test_show_refuses_what_is_not_there(app, fields, status, words):
    refused = post(app, "/api/show", **fields)
    assert refused.status == status
    assert words in refused.json()["error"]


def test_the_version_is_quires(app):
    assert get(app, "/api/version").json() == {"version": __version__}


def test_routes_that_do_not_exist_have_ollamas_errors(app):
    missing = post(app, "/api/embed", model="demo", input="x")
    assert (missing.status, set(missing.json())) == (404, {"error"})
