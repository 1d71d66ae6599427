"""Tokenizers of GGUF files give the ids of the tokenizers that they were made from."""

import json
from functools import cache
from itertools import pairwise

import pytest
from gguf_checkpoints import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from gguf_files import write_gguf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from quire.compose.gguf.small_files import small_file
from quire.errors import CheckpointCorruptError, UnsupportedModelError
from quire.frontend.text.tokenizer import Tokenizer as OurTokenizer

WORDS = (
    "the quick brown fox jumps over the lazy dog's 12345 times, isn't it? I'LL we've  THEY'RE\n\n"
    "def f(x):\n\treturn x + 1  # ünïcödé straße Å\r\n über 日本語 привет мир 3.14 e=mc2 \u0301a ñ "
) * 3
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {  # as in the families' tokenizer.json
    "llama-bpe": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",
    "qwen2": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",
    "tekken": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
PATTERNS["gpt-4o"] = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
PATTERNS["deepseek-r1-qwen"] = PATTERNS["qwen2"]
PATTERNS["dbrx"] = PATTERNS["llama-bpe"]
DIGITS = ("smollm", "command-r")
SPECIAL, OWN = "<|end|>", "<tool_call>"
TEXTS = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from([*WORDS.split(" "), SPECIAL, OWN, "  ", "\n"])),
    max_size=12,
).map(" ".join)


@cache
def trained(pre: str) -> Tokenizer:
    """A byte-level tokenizer with the parts of a family's tokenizer.json."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken", "gpt-4o")))
    if pre in ("qwen2", "command-r"):
        tokenizer.normalizer = normalizers.NFC()
    if pre in PATTERNS:
        split = pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if pre in DIGITS else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([WORDS], trainer)
    tokenizer.add_special_tokens([AddedToken(SPECIAL, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken(OWN, normalized=False)])
    return tokenizer


def byte_level_metadata(pre, **extra):
    spec = json.loads(trained(pre).to_str())
    tokens = {i: (token, NORMAL) for token, i in spec["model"]["vocab"].items()}
    for added in spec["added_tokens"]:
        kind = CONTROL if added["special"] else USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    ordered = [*(tokens[i] for i in range(len(tokens))), ("[PAD1]", UNUSED)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in ordered],
        "tokenizer.ggml.token_type": [kind for _, kind in ordered],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in spec["model"]["merges"]],
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.gguf"


def loaded(file, metadata) -> OurTokenizer:
    return OurTokenizer.load(write_gguf(file, metadata, {}))


@pytest.mark.parametrize("pre", [*PATTERNS, *DIGITS, "gpt-2"])
def test_byte_level_ids_are_those_of_the_original(tmp_path_factory, pre):
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    ours = loaded(file, byte_level_metadata(pre, add_bos_token=False))
    original = trained(pre)

    @settings(max_examples=150, deadline=None)
    @given(text=TEXTS)
    @example(text=WORDS)
    @example(text="A\u030a e\u0301 " + SPECIAL)
    def same(text):
        ids = ours.encode(text)
        assert ids == original.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == original.decode(ids, False)

    same()


def end_id(pre="qwen2"):
    return trained(pre).token_to_id(SPECIAL)


def test_special_tokens_and_unused_ones_are_told_apart(file):
    end = end_id()
    tokenizer = loaded(file, byte_level_metadata("qwen2", eos_token_id=end))
    assert tokenizer.backend.token_to_id(SPECIAL) == end
    assert tokenizer.special_token_ids == {end}
    assert tokenizer.backend.token_to_id(OWN) == end + 1
    assert tokenizer.backend.token_to_id("[PAD1]") is None
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids) == (end + 2, (end,))
    assert tokenizer.decode([end, end + 1]) == OWN


@pytest.mark.parametrize(
    ("pre", "given_", "before"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", None, False),
     ("qwen2", True, True)],
)  # fmt: skip
def test_the_begin_of_text_token_is_added_as_the_file_or_the_family_says(file, pre, given_, before):
    extra = {} if given_ is None else {"add_bos_token": given_}
    tokenizer = loaded(file, byte_level_metadata(pre, bos_token_id=end_id(pre), **extra))
    ids = trained(pre).encode("the fox").ids
    assert tokenizer.encode("the fox") == ([end_id(pre), *ids] if before else ids)
    assert tokenizer.encode("the fox", add_special_tokens=False) == ids


def test_the_end_of_text_token_is_added_on_demand(file):
    metadata = byte_level_metadata("qwen2", eos_token_id=end_id(), add_eos_token=True)
    assert loaded(file, metadata).encode("fox")[-1] == end_id()


def test_ends_of_turns_are_found_by_id_and_by_text(file):
    metadata = byte_level_metadata("qwen2", eos_token_id=3, eot_token_id=5)
    assert loaded(file, metadata).eos_token_ids == (3, 5, end_id())  # the last is <|end|>


def test_a_part_of_a_completion_of_gpt_oss_is_not_its_end(file):
    tokens = byte_level_metadata("qwen2")["tokenizer.ggml.tokens"]
    ours = [*tokens, "<|return|>", "<|call|>"]
    types = [*byte_level_metadata("qwen2")["tokenizer.ggml.token_type"], CONTROL, CONTROL]
    metadata = byte_level_metadata("qwen2", tokens=ours, token_type=types)
    assert loaded(file, metadata).eos_token_ids == (len(tokens), len(tokens) + 1)
    without = {"tokenizer.ggml.tokens": ours[:-1], "tokenizer.ggml.token_type": types[:-1]}
    assert loaded(file, metadata | without).eos_token_ids == (end_id(), len(tokens))


# SentencePiece: a vocabulary by hand, and its algorithm, one merge after the other.
PIECES = [
    "▁",
    *"abcdeT",
    "▁a",
    "ab",
    "▁ab",
    "bc",
    "abc",
    "▁abc",
    "cd",
    "▁T",
    "de",
    "cde",
    "▁▁",
    "aa",
]


def scored_vocabulary():
    """Tokens with their types and scores: special ones, bytes, and pieces by falling score."""
    special = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    octets = [(f"<0x{i:02X}>", BYTE, 0.0) for i in range(256)]
    merged = sorted((piece for piece in PIECES if len(piece) > 1), key=lambda p: (hash_of(p), p))
    pieces = [(piece, NORMAL, -float(i)) for i, piece in enumerate(merged)]
    letters = [(piece, NORMAL, -100.0 - i) for i, piece in enumerate(PIECES) if len(piece) == 1]
    return [*special, *octets, *pieces, *letters, ("[INST]", CONTROL, 0.0)]


def hash_of(piece):
    """An order that is neither that of lengths nor of letters."""
    return sum(i * ord(letter) for i, letter in enumerate(piece, 3)) % 17


def sentence_piece_metadata(**extra):
    tokens = scored_vocabulary()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [token for token, _, _ in tokens],
        "tokenizer.ggml.token_type": [kind for _, kind, _ in tokens],
        "tokenizer.ggml.scores": [score for _, _, score in tokens],
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


def sentence_piece_ids(text, prefix="▁"):
    """Merge the neighbours whose whole has the highest score, the first of equal ones."""
    tokens = scored_vocabulary()
    ids = {token: i for i, (token, _, _) in enumerate(tokens)}
    scores = {token: score for token, kind, score in tokens if kind == NORMAL}
    symbols = list((prefix if text else "") + text.replace(" ", "▁"))
    while True:
        pairs = [left + right for left, right in pairwise(symbols)]
        known = [(scores[pair], -i) for i, pair in enumerate(pairs) if pair in scores]
        if not known:
            break
        i = -max(known)[1]
        symbols[i : i + 2] = [pairs[i]]
    found = []
    for symbol in symbols:
        octets = [ids[f"<0x{octet:02X}>"] for octet in symbol.encode()]
        found += [ids[symbol]] if symbol in scores else octets
    return found


LETTERS = st.text("abcdeT  xé日\n", max_size=20)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentence_piece_ids_are_those_of_its_algorithm(tmp_path_factory, has_prefix):
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    ours = loaded(file, sentence_piece_metadata(add_space_prefix=has_prefix))

    @settings(max_examples=300, deadline=None)
    @given(text=LETTERS)
    def same(text):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == sentence_piece_ids(text, "▁" if has_prefix else "")
        assert ours.decode(ids) == text
        assert ours.encode(text) == [1, *ids]

    same()


def gemma4_metadata():
    """The same vocabulary with the merges that its scores stand for, in their order."""
    scores = {token: score for token, kind, score in scored_vocabulary() if kind == NORMAL}
    found = [
        (-score, end, f"{token[:end]} {token[end:]}")
        for token, score in scores.items()
        for end in range(1, len(token))
        if token[:end] in scores and token[end:] in scores
    ]
    merges = [merge for *_, merge in sorted(found, key=lambda each: (each[0], -each[1]))]
    metadata = sentence_piece_metadata(model="gemma4", merges=merges, add_space_prefix=False)
    return metadata | {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


def test_pieces_of_gemma_4_are_merged_in_the_order_of_the_file(tmp_path_factory):
    ours = loaded(tmp_path_factory.mktemp("gguf") / "model.gguf", gemma4_metadata())

    @settings(max_examples=300, deadline=None)
    @given(text=LETTERS)
    def same(text):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == sentence_piece_ids(text, "")
        assert ours.decode(ids) == text
        assert ours.encode(text) == [1, *ids]

    same()


def test_merges_of_gemma_4_are_of_its_tokens(file):
    with pytest.raises(CheckpointCorruptError, match="there is no token 'Q'"):
        loaded(file, gemma4_metadata() | {"tokenizer.ggml.merges": ["a Q"]})


def test_sentence_piece_has_its_special_tokens_without_their_ids_in_the_file(file):
    tokenizer = loaded(file, sentence_piece_metadata())
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    assert tokenizer.eos_token_ids == (2,)
    ids = tokenizer.encode("[INST]ab</s>")
    inst = tokenizer.backend.token_to_id("[INST]")
    assert ids == [1, inst, *sentence_piece_ids("ab"), 2]


def test_tokens_stream_as_text(file):
    tokenizer = loaded(file, sentence_piece_metadata())
    ids = tokenizer.encode("abc é T", add_special_tokens=False)
    stream = tokenizer.text_stream([], skip_special_tokens=True)
    assert "".join(stream.feed(i) for i in ids) + stream.close() == "abc é T"


def test_templates_are_those_of_the_file(file):
    metadata = byte_level_metadata("qwen2") | {
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    config = json.loads(small_file(write_gguf(file, metadata, {}), "tokenizer_config.json"))
    assert config["chat_template"] == [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]


def test_a_file_without_a_tokenizer_has_no_such_file(file):
    write_gguf(file, {"tokenizer.ggml.model": "none"}, {})
    assert small_file(file, "tokenizer.json") is None
    assert json.loads(small_file(file, "tokenizer_config.json")) == {}
    assert small_file(file, "generation_config.json") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "bert"},
            "tokenizer of the kind 'bert'; quire reads gpt2, llama and gemma4 .*--tokenizer",
        ),
        ({"pre": "kimi-k2"}, "pre-tokenizer 'kimi-k2'.*quire knows llama-bpe"),
        ({"pre": None}, "names no pre-tokenizer .*--tokenizer"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused_with_the_way_out(file, changes, message):
    metadata = byte_level_metadata("qwen2") | {
        f"tokenizer.ggml.{key}": value for key, value in changes.items()
    }
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(UnsupportedModelError, match=message):
        loaded(file, metadata)
    assert small_file(file, "tokenizer_config.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["a"]}, "has 1 tokenizer.ggml.tokens and \\d+ types"),
        ({"tokens": [1.0]}, "tokenizer.ggml.tokens .* must be an array of str"),
        ({"tokens": "a"}, "tokenizer.ggml.tokens .* must be an array of str"),
        ({"merges": ["ab"]}, "must be pairs of tokens with a blank between them, got 'ab'"),
        ({"merges": ["a b c"]}, "got 'a b c'"),
        ({"merges": ["zz qq"]}, "has 'zz qq', but there is no token 'zz'; .*--tokenizer"),
        ({"merges": ["a zz"]}, "has 'a zz', but there is no token 'zz'"),
        ({"merges": ["q z"]}, "has 'q z', but there is no token 'qz'"),
        ({"eos_token_id": 423}, r"eos_token_id .* the id of one of its \d+ tokens, got 423"),
        ({"add_bos_token": 1}, "add_bos_token .* must be true or false, got 1"),
        ({"model": 3}, "tokenizer.ggml.model .* must be a text"),
        ({"model": "llama"}, "has 0 tokenizer.ggml.scores for"),
    ],
)
def test_a_broken_tokenizer_is_named_with_the_reason(file, changes, message):
    metadata = byte_level_metadata("qwen2") | {
        f"tokenizer.ggml.{key}": value for key, value in changes.items()
    }
    with pytest.raises(CheckpointCorruptError, match=message):
        loaded(file, metadata)


def with_token(index, text, kind=NORMAL):
    """A vocabulary in which one token has another text and type."""
    metadata = byte_level_metadata("qwen2")
    tokens = list(metadata["tokenizer.ggml.tokens"])
    kinds = list(metadata["tokenizer.ggml.token_type"])
    tokens[index], kinds[index] = text, kind
    return metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}


def test_two_tokens_of_one_text_are_named_with_their_ids(file):
    metadata = with_token(70, byte_level_metadata("qwen2")["tokenizer.ggml.tokens"][9])
    message = r"tokenizer\.ggml\.tokens in .* twice, as ids 9 and 70; .* --tokenizer"
    with pytest.raises(CheckpointCorruptError, match=message):
        loaded(file, metadata)


def test_unused_tokens_may_have_the_text_of_others(file):
    metadata = with_token(-1, SPECIAL, UNUSED)
    assert loaded(file, metadata).backend.token_to_id(SPECIAL) == end_id()


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_token_to_add_needs_an_id(file, name):
    message = rf"add_{name}_token in .* is true, and there is no tokenizer\.ggml\.{name}_token_id"
    with pytest.raises(CheckpointCorruptError, match=message):
        loaded(file, byte_level_metadata("qwen2", **{f"add_{name}_token": True}))


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"chat_template": 3}, "chat_template in .* must be a text; .* --chat-template"),
        ({"chat_template": ["a"]}, "chat_template in .* must be a text"),
        ({"chat_templates": "tool_use"}, "chat_templates in .* must be an array of names"),
        ({"chat_templates": [1]}, "chat_templates in .* must be an array of names"),
        ({"chat_templates": ["x"]}, "chat_template.x in .* is missing"),
    ],
)
def test_a_chat_template_that_is_none_is_named(file, templates, message):
    metadata = {f"tokenizer.{key}": value for key, value in templates.items()}
    write_gguf(file, byte_level_metadata("qwen2") | metadata, {})
    with pytest.raises(CheckpointCorruptError, match=message):
        small_file(file, "tokenizer_config.json")


def test_an_id_of_all_bits_is_none(file):
    metadata = byte_level_metadata("qwen2", padding_token_id=2**32 - 1)
    assert "pad_token" not in loaded(file, metadata).special_tokens


def test_an_original_model_of_sentence_piece_has_the_same_ids(tmp_path_factory):
    """With the library itself, where it is installed."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("gguf")
    (folder / "words.txt").write_text(WORDS.replace("\n", " ") * 5)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "words.txt"), model_prefix=str(folder / "m"), model_type="bpe",
        vocab_size=400, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))
    count = range(model.get_piece_size())
    kinds = [
        UNKNOWN if model.is_unknown(i) else CONTROL if model.is_control(i)
        else BYTE if model.is_byte(i) else NORMAL for i in count
    ]  # fmt: skip
    ours = loaded(
        folder / "model.gguf",
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in count],
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": [model.get_score(i) for i in count],
        },
    )

    @settings(max_examples=300, deadline=None)
    @given(text=st.lists(st.sampled_from(WORDS.split()), max_size=9).map(" ".join))
    @example(text="straße  日本語 ünïcödé")
    def same(text):
        assert ours.encode(text, add_special_tokens=False) == model.encode(text)

    same()
