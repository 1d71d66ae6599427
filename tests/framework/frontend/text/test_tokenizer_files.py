"""The tokenizer settings in each of a checkpoint's small files."""

import json
from types import SimpleNamespace

import pytest

from quire.errors import CheckpointCorruptError, CheckpointNotFoundError
from quire.frontend.text import tokenizer as tokenizer_module
from quire.frontend.text.tokenizer import FastBackend, SlowBackend, Tokenizer

END, START = "<|end|>", "<|start|>"


@pytest.fixture
def load(folder, tmp_path):
    """Load the tokenizer with small files of these contents beside it."""

    def make(**contents):
        (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
        for name, content in contents.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return Tokenizer.load(tmp_path)

    return make


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({}, ()),
        ({"tokenizer_config": {"eos_token": END}}, (0,)),
        ({"tokenizer_config": {"eos_token": "nowhere"}}, ()),
        ({"generation_config": {"eos_token_id": 7}}, (7,)),
        ({"generation_config": {"eos_token_id": [7, 8, 7]}}, (7, 8)),
        ({"generation_config": {"eos_token_id": []}, "config": {"eos_token_id": 9}}, (9,)),
        ({"config": {"eos_token_id": [9]}}, (9,)),
        ({"generation_config": {"eos_token_id": 7}, "config": {"eos_token_id": 9}}, (7,)),
        ({"tokenizer_config": {"eos_token": END}, "config": {"eos_token_id": 9}}, (0,)),
        (
            {"tokenizer_config": {"eos_token": END}, "generation_config": {"eos_token_id": [7, 0]}},
            (0, 7),
        ),
    ],
)
def test_end_of_text_ids_are_read_from_several_files(load, files, ids):
    assert load(**files).eos_token_ids == ids


@pytest.mark.parametrize("declared", ["7", [1.5], -1, [0, -1], True, [False], {}])
def test_an_end_that_is_no_id_is_named(load, declared):
    for name in ("generation_config", "config"):
        with pytest.raises(CheckpointCorruptError, match=rf"{name}\.json: eos_token_id"):
            load(**{"generation_config": {}} | {name: {"eos_token_id": declared}})


@pytest.mark.parametrize(
    ("config", "special_map", "tokens"),
    [
        ({"bos_token": START}, {}, {"bos_token": START}),
        ({"bos_token": {"content": START}}, {}, {"bos_token": START}),
        ({}, {"bos_token": START}, {"bos_token": START}),
        ({"bos_token": None}, {"bos_token": START}, {"bos_token": START}),
        ({"bos_token": "a"}, {"bos_token": "b"}, {"bos_token": "a"}),
        ({"unk_token": {"lstrip": True}, "pad_token": 5, "mask_token": "m"}, {}, {}),
    ],
)
def test_special_tokens_stand_in_two_files_as_text_or_as_objects(load, config, special_map, tokens):
    found = load(tokenizer_config=config, special_tokens_map=special_map)
    assert found.special_tokens == tokens


@pytest.mark.parametrize(
    ("asked", "is_added"), [(True, True), (False, False), ("yes", False), (None, False)]
)
def test_the_config_says_whether_a_text_begins_by_a_token(load, asked, is_added):
    found = load(tokenizer_config={"bos_token": START, "add_bos_token": asked})
    bos = found.backend.token_to_id(START)
    assert (found.encode("fox")[0] == bos) is is_added
    assert found.encode("fox", add_special_tokens=False)[0] != bos
    assert found.encode("fox").count(bos) == int(is_added)


def test_added_tokens_that_are_not_special_are_shown(tokenizer):
    call = tokenizer.backend.token_to_id("<tool_call>")
    assert tokenizer.special_token_ids == {
        tokenizer.backend.token_to_id(name) for name in (END, START)
    }
    assert tokenizer.text_stream([], True).feed(call) == "<tool_call>"


class Backend:
    """The vocabulary of a backend alone, with a gap."""

    def vocabulary(self):
        return {"a": 0, "b": 9}

    def special_token_ids(self):
        return frozenset()

    def token_to_id(self, token):
        return self.vocabulary().get(token)

    def encode(self, text, *, add_special_tokens):
        return [self.vocabulary()[letter] for letter in text]


def test_ids_behind_a_gap_exist():
    assert Tokenizer(Backend()).vocab_size == 10


class Converted:
    """What transformers loads: fast, or slow."""

    is_fast = True
    all_special_ids = [2]  # noqa: RUF012 - as theirs

    def __init__(self, fast):
        self.backend_tokenizer = fast

    def get_vocab(self):
        return {"a": 0, "b": 1, "</s>": 2}

    def convert_ids_to_tokens(self, token_id):
        return {0: "a", 1: "b", 2: "</s>"}.get(token_id)

    def encode(self, text, add_special_tokens):
        return (0, 1) if add_special_tokens else (1,)

    def decode(self, token_ids, skip_special_tokens, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        kept = [i for i in token_ids if not (skip_special_tokens and i == 2)]
        return "".join(map(str, kept))


@pytest.mark.parametrize("is_fast", [True, False])
def test_transformers_runs_no_code_of_a_checkpoint_and_asks_no_network(
    tokenizer, tmp_path, monkeypatch, is_fast
):
    asked = []
    made = Converted(tokenizer.backend._tokenizer)
    made.is_fast = is_fast

    def from_pretrained(path, **options):
        asked.append((path, options))
        return made

    module = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setattr(tokenizer_module, "import_module", lambda name: module)
    loaded = Tokenizer.load(tmp_path)
    assert asked == [(str(tmp_path), {"trust_remote_code": False, "local_files_only": True})]
    assert type(loaded.backend) is (FastBackend if is_fast else SlowBackend)


def test_what_transformers_cannot_load_is_no_tokenizer(tmp_path, monkeypatch):
    def from_pretrained(path, **options):
        raise KeyError("odd")

    module = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setattr(tokenizer_module, "import_module", lambda name: module)
    with pytest.raises(CheckpointNotFoundError, match="--tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_of_code_is_refused_with_the_way_out(tmp_path):
    """transformers would advise an argument that quire does not have."""
    marker = tmp_path / "ran"
    (tmp_path / "tokenizing.py").write_text(f"open({str(marker)!r}, 'w')")
    named = {"AutoTokenizer": ["tokenizing.Acme", None]}
    config = {"tokenizer_class": "Acme", "auto_map": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointNotFoundError, match="its tokenizer is Python code, which is nev"):
        Tokenizer.load(tmp_path)
    assert not marker.exists()


def test_a_slow_tokenizer_is_asked_for_everything():
    slow = SlowBackend(Converted(None))
    assert slow.encode("x", add_special_tokens=True) == [0, 1]
    assert slow.encode("x", add_special_tokens=False) == [1]
    assert slow.decode((0, 2), skip_special_tokens=True) == "0"
    assert slow.decode((0, 2), skip_special_tokens=False) == "02"
    assert [slow.id_to_token(i) for i in (0, 9)] == ["a", None]
    assert [slow.token_to_id(name) for name in ("b", "z")] == [1, None]
    assert slow.special_token_ids() == {2}
    assert slow.decoder() is None
    assert Tokenizer(slow).vocab_size == 3


@pytest.mark.parametrize("length", [4096, 4097])
@pytest.mark.parametrize("adds", [True, False])
def test_long_texts_are_encoded_as_short_ones(tokenizer, length, adds):
    fast = tokenizer.backend
    text = ("naïve fox " * 500)[:length]
    assert (
        fast.encode(text, add_special_tokens=adds)
        == fast._tokenizer.encode(text, add_special_tokens=adds).ids
    )
