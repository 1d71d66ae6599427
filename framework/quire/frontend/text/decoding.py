"""Choice of a tokenizer's decoding, by the decoder that tokenizer.json describes.

Byte-level BPE and the SentencePiece variants (Metaspace; Replace, ByteFallback, Fuse, Strip) have
exact incremental decoders. Any other decoder is applied to a window of tokens.
"""

from typing import Any

from quire.frontend.text.byte_level import ByteLevelDecoding
from quire.frontend.text.byte_spelling import flat_steps
from quire.frontend.text.pieces import PieceDecoding, PieceRules
from quire.frontend.text.text_stream import Decoding
from quire.frontend.text.tokenizer_backend import TokenizerBackend
from quire.frontend.text.window import WindowDecoding


def decoding_of(backend: TokenizerBackend) -> Decoding:
    """Return the decoding for a tokenizer's decoder."""
    steps = [*flat_steps(backend.decoder(), "decoders")]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return ByteLevelDecoding(backend)
    rules = _piece_rules(steps)
    return WindowDecoding(backend) if rules is None else PieceDecoding(backend, rules)


def _piece_rules(steps: list[dict[str, Any]]) -> PieceRules | None:
    """Return the rules if `PieceStream` reproduces the decoder steps exactly."""
    kinds = [step["type"] for step in steps]
    if kinds == ["Metaspace"]:
        drops_marks = steps[0].get("prepend_scheme", "always") != "never"
        return PieceRules(steps[0]["replacement"], drops_first_marks=drops_marks)
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or len(kinds) > 4:
        return None
    mark = steps[0]["pattern"].get("String")
    if mark is None or steps[0]["content"] != " ":
        return None
    if len(kinds) == 3:
        return PieceRules(mark, has_byte_tokens=True)
    strip = steps[3]
    if strip["type"] != "Strip" or strip["content"] != " " or strip["stop"]:
        return None
    return PieceRules(mark, has_byte_tokens=True, num_strip=strip["start"])
