"""The served model and each adapter have a name, and requests find them by it."""

import pytest
from asgi_parts import get, post

from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.routes.models import root_of


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), list)


def test_all_names_are_listed(app, frontend):
    body = get(app, "/v1/models").json()
    assert body["object"] == "list"
    shared = {"object": "model", "owned_by": "quire", "max_model_len": frontend.max_model_len}
    created = {card.pop("created") for card in body["data"]}
    assert len(created) == 1
    assert body["data"] == [
        {"id": "demo", "root": "demo", "parent": None} | shared,
        {"id": "pirate", "root": "adapters/pirate", "parent": "demo"} | shared,
    ]


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("adapters/pirate", "adapters/pirate"),
        ("/srv/secret/pirate", "pirate"),
        ("/srv/secret/pirate/", "pirate"),
        ("/srv/hub/models--acme--pirate-lora/snapshots/c0ffee", "acme/pirate-lora"),
        ("/srv/hub/models--acme--a--b/snapshots/c0ffee/adapter", "acme/a--b"),
    ],
)
def test_an_adapters_root_shows_no_folder_of_the_server(path, root):
    assert root_of(path) == root


@pytest.mark.parametrize("name", ["demo", "pirate"])
def test_one_name_is_its_card_of_the_list(app, name):
    listed = {card["id"]: card for card in get(app, "/v1/models").json()["data"]}
    assert get(app, f"/v1/models/{name}").json() == listed[name]


def test_a_name_that_is_not_served_is_not_found(app):
    wire = get(app, "/v1/models/a/b")
    assert (wire.status, wire.error["code"], wire.error["param"]) == (
        404, "model_not_found", "model",
    )  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_every_route_knows_the_names(app, path):
    assert post(app, path, prompt="x", model="pirate").status == 200
    assert post(app, path, prompt="x", model="ghost").status == 404
    assert post(app, "/detokenize", tokens=[300], model="ghost").status == 404
    chat = {"messages": [{"role": "user", "content": "x"}]}
    assert post(app, "/v1/chat/completions", **chat, model="pirate").json()["model"] == "pirate"
    assert post(app, "/v1/chat/completions", **chat, model="ghost").status == 404
