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
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


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


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"add_generation_prompt": False},
        {"messages": [*HI, {"role": "assistant", "content": "Yes"}],
         "continue_final_message": True},
        {"tools": [TOOL]},
        {"add_special_tokens": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [{"role": "user", "content": f"{BOS}system"}]},
        {"messages": [{"role": "user", "content": "word " * 1000}]},
    ],
)  # fmt: skip
def test_messages_have_the_tokens_of_their_chat(app, fields):
    body = {"messages": HI} | fields
    found = post(app, "/tokenize", **body).json()
    if found["count"] < 500:
        chat = post(app, "/v1/chat/completions", **body, max_tokens=1, return_token_ids=True)
        assert found["tokens"] == chat.json()["prompt_token_ids"]
    assert found["count"] == len(found["tokens"])


def test_a_conversation_is_counted_with_the_start_of_the_answer(app, watched):
    def text(**fields):
        return watched.decode(post(app, "/tokenize", messages=HI, **fields).json()["tokens"], False)

    assert text().startswith(text(add_generation_prompt=False))
    assert text().endswith("assistant\n")


def test_tokens_may_be_shown_as_the_tokenizer_spells_them(app, watched):
    body = post(app, "/tokenize", prompt="ä word", return_token_strs=True).json()
    assert body["token_strs"] == [watched.backend.id_to_token(i) for i in body["tokens"]]
    assert body["token_strs"][0] == BOS
    assert "token_strs" not in post(app, "/tokenize", prompt="a").json()


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
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"messages": "Hi"}, "messages"),
        ("/tokenize", {"messages": HI, "tools": [{"type": "function"}]}, "tools[0]"),
        ("/tokenize", {"messages": HI, "chat_template_kwargs": {"messages": 1}},
         "chat_template_kwargs"),
        ("/tokenize", {"messages": HI, "continue_final_message": True,
                       "add_generation_prompt": True}, "continue_final_message"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "model": "ghost"}, "model"),
        ("/detokenize", {"tokens": [1], "model": "ghost"}, "model"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_named(app, path, body, param):
    wire = post(app, path, **body)
    assert wire.status == (404 if param == "model" else 400)
    assert wire.error["param"] == param
