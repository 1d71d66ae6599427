"""Completions in the deltas that a server has: the text of each token, as quire decodes it.

The tokenizers are small and trained on the samples: bytes or pieces, with the markers of the format
as special tokens, as added tokens, or spelled by ordinary ones.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import tokenizers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from quire.frontend.text.decoding import decoding_of
from quire.frontend.text.tokenizer import FastBackend

NUM_MERGES = 120
BLANK = "\ue000"  # not SentencePiece's \u2581, which markers of DeepSeek have


@dataclass(frozen=True, slots=True, eq=False)
class TokenStream:
    """A tokenizer that cuts texts.

    Attributes:
        name: Name for messages.
        tokenizer: The tokenizer.
    """

    name: str
    tokenizer: tokenizers.Tokenizer

    def deltas(self, text: str) -> list[str]:
        """Return the text that each token adds, special tokens included.

        Raises:
            ValueError: The tokens are those of another text.
        """
        backend = FastBackend(self.tokenizer)
        stream = decoding_of(backend).stream((), frozenset())
        token_ids = backend.encode(text, add_special_tokens=False)
        deltas = [*map(stream.feed, token_ids), stream.close()]
        if "".join(deltas) != text:
            raise ValueError(f"the tokenizer {self.name} changes the text {text!r}")
        return [delta for delta in deltas if delta]


@lru_cache(maxsize=8)
def token_streams(texts: tuple[str, ...], markers: tuple[str, ...]) -> tuple[TokenStream, ...]:
    """Return small tokenizers for a format.

    Args:
        texts: Texts to train them on.
        markers: Markers of the format.
    """
    streams = []
    for kind, new in (("bytes", _byte_level), ("pieces", _pieces)):
        streams.append(TokenStream(f"of {kind}", new(texts)))
        for spelling, is_special in (("special", True), ("added", False)):
            tokenizer = new(texts)
            tokens = [AddedToken(each, special=is_special, normalized=False) for each in markers]
            tokenizer.add_tokens(tokens)
            streams.append(TokenStream(f"of {kind} with {spelling} markers", tokenizer))
    return tuple(streams)


def _byte_level(texts: Sequence[str]) -> Tokenizer:
    """Return a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + NUM_MERGES,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _pieces(texts: Sequence[str]) -> Tokenizer:
    """Return a BPE of characters with a token for each byte, as SentencePiece's."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", BLANK)
    trained.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=256 + NUM_MERGES, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    bytes_first = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary = bytes_first | {token: 256 + i for token, i in model["vocab"].items()}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", BLANK)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
