"""Small real parts: tokenizers of every family, and an intake."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from quire.frontend.intake.intake import Intake
from quire.frontend.text.tokenizer import FastBackend, Tokenizer

TEXTS = (
    "the quick brown fox jumps over the lazy dog",
    "Straße, naïve café; 漢字かな交じり文 👩‍👩‍👧 🏳️‍🌈 \u200d é",
    '{"name": "find", "arguments": {"city": "São Paulo"}} <tool_call> stop STOP',
)
EOS = "<|end|>"


def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen have it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[EOS, "<|start|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


def odd_byte_level_backend() -> tokenizers.Tokenizer:
    """The same with an added token that its own decoder takes for a byte."""
    tokenizer = byte_level_backend()
    tokenizer.add_tokens([AddedToken("é", special=False), AddedToken("é 漢", special=False)])
    return tokenizer


PIECES = ("▁", "▁the", "▁▁", "a", "b", "é", "▁x▁y", "漢", "ab▁", "🏳", ".", "<0x", "�")


def byte_fallback_backend(num_strip: int = 1) -> tokenizers.Tokenizer:
    """SentencePiece BPE with byte fallback, as Llama 2, Mistral and Gemma have it."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if num_strip:
        steps.append(decoders.Strip(" ", num_strip, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<tool_call>"])
    return tokenizer


def metaspace_backend(prepend_scheme: str = "always") -> tokenizers.Tokenizer:
    """SentencePiece unigram, as T5 and XLM-R have it."""
    names = ["<unk>", "</s>", *PIECES]
    tokenizer = tokenizers.Tokenizer(
        models.Unigram([(name, -1.0) for name in names], unk_id=0, byte_fallback=False)
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return tokenizer


def word_piece_backend() -> tokenizers.Tokenizer:
    """WordPiece, as BERT has it, with a decoder of its own."""
    names = ["[UNK]", "[SEP]", "the", "fox", "##es", "##y", ".", "'", "s", "漢", "##字", ","]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    return tokenizer


def bare_backend() -> tokenizers.Tokenizer:
    """No decoder at all: tokens with blanks between."""
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[UNK]")
    )
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


FAMILIES: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte_level": byte_level_backend,
    "odd_byte_level": odd_byte_level_backend,
    "byte_fallback": byte_fallback_backend,
    "byte_fallback_no_strip": lambda: byte_fallback_backend(0),
    "byte_fallback_strip_two": lambda: byte_fallback_backend(2),
    "metaspace": metaspace_backend,
    "metaspace_first": lambda: metaspace_backend("first"),
    "metaspace_never": lambda: metaspace_backend("never"),
    "word_piece": word_piece_backend,
    "bare": bare_backend,
}


@pytest.fixture(scope="session")
def families() -> dict[str, Tokenizer]:
    """A tokenizer of each family."""
    return {name: Tokenizer(FastBackend(build())) for name, build in FAMILIES.items()}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's folder, as far as the frontend reads it."""
    path = tmp_path_factory.mktemp("checkpoint")
    tokenizer = byte_level_backend()
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"eos_token": EOS, "bos_token": {"content": "<|start|>"}, "add_bos_token": False}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tokenizer.token_to_id(EOS), 7]})
    )
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    """The byte-level one, from its files."""
    return Tokenizer.load(folder)


@pytest.fixture
def intake(tokenizer: Tokenizer) -> Intake:
    """An intake without plugins."""
    return Intake(tokenizer, max_model_len=256, vocab_size=tokenizer.vocab_size)
