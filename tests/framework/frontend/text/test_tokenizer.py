"""A tokenizer is read from its files, and a broken file is named."""

import json

import pytest
from tokenizers import processors

from quire.errors import CheckpointCorruptError, CheckpointNotFoundError
from quire.frontend.text.tokenizer import SHORT_CHARACTERS, FastBackend, Tokenizer


def test_text_survives_the_way_there_and_back(tokenizer):
    text = "the fox said: 漢字 👩‍👩‍👧 \u200d é\n\t!"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_texts_have_the_same_tokens(tokenizer):
    word = "naïve 👩‍👩‍👧 fox\n"
    assert tokenizer.encode(word * 1000) == tokenizer.encode(word) * 1000


def test_end_of_text_ids_come_from_the_config_and_the_tokenizer(tokenizer):
    assert tokenizer.eos_token_ids == (tokenizer.backend.token_to_id("<|end|>"), 7)


def test_special_tokens_stand_as_text_or_as_objects(tokenizer):
    assert tokenizer.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}


def test_tokens_as_bytes_joined_are_the_text(tokenizer):
    ids = tokenizer.encode("naïve 👩 <tool_call>")
    assert b"".join(map(tokenizer.token_bytes, ids)) == "naïve 👩 <tool_call>".encode()


def test_a_token_alone_keeps_its_blank(families):
    tokenizer = families["byte_fallback"]
    the, byte = (tokenizer.backend.token_to_id(t) for t in ("▁the", "<0xE2>"))
    assert tokenizer.token_text(the) == " the"
    assert tokenizer.token_bytes(byte) == b"\xe2"
    assert tokenizer.token_text(byte) == "\ufffd"


@pytest.mark.parametrize("post_processor_adds", [False, True])
@pytest.mark.parametrize("asked_for", [False, True, None])
def test_add_bos_token_of_the_config_counts(folder, asked_for, post_processor_adds):
    base = Tokenizer.load(folder).backend
    fast = FastBackend(base._tokenizer.from_str(base._tokenizer.to_str()))
    bos = fast.token_to_id("<|start|>")
    if post_processor_adds:
        fast._tokenizer.post_processor = processors.TemplateProcessing(
            single="<|start|> $A", special_tokens=[("<|start|>", bos)]
        )
    tokenizer = Tokenizer(fast, special_tokens={"bos_token": "<|start|>"}, add_bos_token=asked_for)
    is_added = post_processor_adds if asked_for is None else asked_for
    assert (tokenizer.encode("fox")[0] == bos) is is_added
    assert tokenizer.encode("fox", add_special_tokens=False)[0] != bos
    long = "fox" * SHORT_CHARACTERS
    assert (tokenizer.encode(long)[0] == bos) is is_added
    assert tokenizer.encode(long, add_special_tokens=False)[0] != bos


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="no folder"):
        Tokenizer.load(tmp_path / "nowhere")


def test_a_folder_without_a_tokenizer_is_named_with_the_way_out(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="--tokenizer"):
        Tokenizer.load(tmp_path)


def test_without_a_fast_file_transformers_converts_and_the_log_says_so(tmp_path, folder, caplog):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with caplog.at_level("WARNING"):
        tokenizer = Tokenizer.load(tmp_path)
    assert "loads torch" in caplog.text
    assert tokenizer.encode("the fox") == Tokenizer.load(folder).encode("the fox")
    assert tokenizer.eos_token_ids == (0,)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00\x01"])
def test_a_broken_file_is_named(folder, tmp_path, name, content):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointCorruptError, match=name):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("declared", ["two", [1, "x"], -1, True])
def test_an_end_of_text_that_is_no_id_is_refused(folder, tmp_path, declared):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": declared}))
    with pytest.raises(CheckpointCorruptError, match="eos_token_id"):
        Tokenizer.load(tmp_path)
