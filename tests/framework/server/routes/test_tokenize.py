"""Text to ids and back, through the application."""

import asyncio
import threading

import pytest
from asgi_parts import post
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend

from quire.config import ServerSettings
from quire.frontend.text.tokenizer import Tokenizer
from quire.server.app import create_app

BOS = "<|im_start|>"
LONG = 5000  # characters, too many for the event loop


class Watched(Tokenizer):
    """Begins every text by a token of its own, and notes the threads that it works in."""

    threads: list[str] = []  # noqa: RUF012 - one for all

    def encode(self, text, add_special_tokens=True):
        self.threads.append(threading.current_thread().name)
        return super().encode(text, add_special_tokens)


@pytest.fixture(scope="module")
def watched(tokenizer):
    special = tokenizer.special_tokens | {"bos_token": BOS}
    return Watched(tokenizer.backend, special_tokens=special, add_bos_token=True)


@pytest.fixture(scope="module")
def app(watched):
    frontend = make_frontend(watched, ScriptedCore(Texts(watched)))
    yield create_app(frontend, ServerSettings(), list)
    asyncio.run(frontend.shutdown())


@pytest.mark.parametrize("length", [10, LONG])
@pytest.mark.parametrize("adds", [None, True, False])
def test_special_tokens_are_added_unless_they_are_not_wanted(app, watched, adds, length):
    Watched.threads.clear()
    fields = {} if adds is None else {"add_special_tokens": adds}
    body = post(app, "/tokenize", prompt="word " * (length // 5), **fields).json()
    assert (body["tokens"][0] == watched.backend.token_to_id(BOS)) is (adds is not False)
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 512
    is_beside = [name != threading.current_thread().name for name in Watched.threads]
    assert is_beside == [length == LONG]


def test_a_text_that_is_far_too_long_is_not_tokenized(app, watched, monkeypatch):
    monkeypatch.setattr(watched, "encode", None)
    refused = post(app, "/tokenize", prompt="a" * 1_000_000)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")


def test_of_a_text_with_far_too_many_tokens_only_a_part_is_tokenized(app, watched, monkeypatch):
    encoded = []

    def encode(text, add_special_tokens=True):
        encoded.append(len(text))
        return Tokenizer.encode(watched, text, add_special_tokens)

    monkeypatch.setattr(watched, "least_tokens", lambda text: 0)
    monkeypatch.setattr(watched, "encode", encode)
    assert post(app, "/tokenize", prompt="a b " * 100_000).status == 400
    assert sum(encoded) < 20_000


def test_ids_become_text_with_their_special_tokens(app, watched):
    bos = watched.backend.token_to_id(BOS)
    ids = [bos, *watched.encode("ä word", add_special_tokens=False)]
    assert post(app, "/detokenize", tokens=ids).json() == {"prompt": f"{BOS}ä word"}
    assert post(app, "/detokenize", tokens=[]).json() == {"prompt": ""}


def test_ids_from_zero_to_the_last_are_taken(app, watched):
    last = watched.vocab_size - 1
    assert post(app, "/detokenize", tokens=[0, last]).status == 200
    for wrong in (-1, last + 1):
        wire = post(app, "/detokenize", tokens=[0, wrong])
        assert (wire.status, wire.error["param"]) == (400, "tokens")
        assert f"tokens contains {wrong}; token ids are from 0 to {last}" in wire.error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": None}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "model": "ghost"}, "model"),
        ("/detokenize", {"tokens": [1], "model": "ghost"}, "model"),
    ],
)
def test_a_wrong_body_is_named(app, path, body, param):
    wire = post(app, path, **body)
    assert wire.status == (404 if param == "model" else 400)
    assert wire.error["param"] == param
