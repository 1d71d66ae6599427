"""A byte-level BPE vocabulary of a real model's size, trained on the text of installed packages.

It is trained once, which takes minutes, and kept in the folder of `--cache`.
"""

import json
import site
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from quire.interfaces.structured_output import Vocabulary

SIZE = 152_000
MAX_TEXT_BYTES = 60 * 2**20
CACHE = Path.home() / ".cache" / "quire-benchmarks"
SUFFIXES = {".py", ".md", ".txt", ".json", ".rst", ".pyi", ".h", ".html"}


def large_tokenizer(size: int = SIZE, cache: Path = CACHE) -> Tokenizer:
    """Return the tokenizer; train it if the cache has none of this size."""
    path = cache / f"bpe-{size}.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    cache.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def large_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the tokens of a byte-level tokenizer as bytes."""
    byte_of = _bytes_of_characters()
    tokens: dict[bytes, list[int]] = {}
    end = tokenizer.token_to_id("<|end|>")
    for text, token_id in tokenizer.get_vocab().items():
        if token_id != end:
            tokens[bytes(byte_of[character] for character in text)] = [token_id]
    return Vocabulary(tokens, (end,), tokenizer.get_vocab_size())


def _texts() -> Iterator[str]:
    num_bytes = 0
    for folder in site.getsitepackages():
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size < 2**20:
                text = path.read_text(errors="ignore")
                num_bytes += len(text)
                yield text
                if num_bytes > MAX_TEXT_BYTES:
                    return


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character that a byte-level tokenizer writes.

    Printable bytes of Latin-1 are written as themselves, the others as U+0100 and up, in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


if __name__ == "__main__":
    made = large_vocabulary(large_tokenizer())
    print(json.dumps({"tokens": len(made.tokens), "size": made.size}))
