"""Tokenizers of checkpoints, with `tokenizers` and, without a tokenizer.json, transformers.

`transformers.AutoTokenizer` loads torch, which takes seconds, so it is the last resort and is
logged. Nothing here runs code from a checkpoint.
"""

import json
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers

from quire.compose.checkpoint import small_file_text
from quire.errors import CheckpointCorruptError, CheckpointNotFoundError
from quire.frontend.text.checkpoint_file import read_json_object
from quire.frontend.text.decoding import decoding_of
from quire.frontend.text.piece_encoder import PieceEncoder
from quire.frontend.text.text_stream import Decoding, TextStream
from quire.frontend.text.token_lengths import TokenLengths
from quire.frontend.text.tokenizer_backend import TokenizerBackend

logger = logging.getLogger(__name__)

SHORT_CHARACTERS = 4096
TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class FastBackend:
    """A `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""
        if len(text) <= SHORT_CHARACTERS:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:  # without offsets: a third of the time, during which it holds the GIL
            (encoding,) = self._tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        ids: list[int] = encoding.ids
        return ids

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of the joined pieces; no special token spans two of them."""
        return self._piece_encoder.encode(pieces)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token as it stands in the vocabulary; None if there is no such id."""
        return self._tokenizer.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary."""
        return self._tokenizer.token_to_id(token)

    def vocabulary(self) -> dict[str, int]:
        """Return all tokens, the added ones too."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least, without tokenizing it."""
        return self._token_lengths.least_tokens(text)

    @cached_property
    def _token_lengths(self) -> TokenLengths:
        return TokenLengths.of(self._tokenizer)

    @cached_property
    def _piece_encoder(self) -> PieceEncoder:
        added = self._tokenizer.get_added_tokens_decoder()
        return PieceEncoder(
            self._tokenizer, {i: token.content for i, token in added.items() if token.special}
        )

    def special_token_ids(self) -> frozenset[int]:
        """Return the ids that `skip_special_tokens` leaves out."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def decoder(self) -> dict[str, Any] | None:
        """Return the decoder as `tokenizer.json` describes it."""
        decoder = self._tokenizer.decoder
        if decoder is None:
            return None
        # The pickled state of a decoder is its JSON; serializing the whole tokenizer takes 100 ms.
        description: dict[str, Any] = json.loads(decoder.__getstate__())
        return description


class SlowBackend:
    """A tokenizer of transformers that has no fast variant."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of all pieces; no token spans two of them."""
        return [i for piece in pieces for i in self.encode(piece, add_special_tokens=False)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids."""
        return str(
            self._tokenizer.decode(
                list(token_ids),
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token as it stands in the vocabulary; None if there is no such id."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return None if token is None else str(token)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary."""
        return self.vocabulary().get(token)

    def vocabulary(self) -> dict[str, int]:
        """Return all tokens, the added ones too."""
        return dict(self._tokenizer.get_vocab())

    def least_tokens(self, text: str) -> int:
        """Return 0: what such a tokenizer drops is in its code."""
        del text
        return 0

    def special_token_ids(self) -> frozenset[int]:
        """Return the ids that `skip_special_tokens` leaves out."""
        return frozenset(self._tokenizer.all_special_ids)

    def decoder(self) -> dict[str, Any] | None:
        """Return None: only `decode` implements the decoder."""
        return None


class Tokenizer:
    """The tokenizer of one checkpoint.

    Attributes:
        eos_token_ids: Ids that end a completion, from generation_config.json and the tokenizer.
        special_tokens: Texts of bos_token, eos_token, pad_token and unk_token, as far as they
            exist; chat templates read them.
        special_token_ids: Ids that `skip_special_tokens` leaves out.
        vocab_size: Largest id plus one; a row of the model's logits may be longer.
    """

    def __init__(
        self,
        backend: TokenizerBackend,
        *,
        special_tokens: dict[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        add_bos_token: bool | None = None,
    ) -> None:
        self.backend = backend
        self.special_tokens = special_tokens or {}
        self.eos_token_ids = tuple(eos_token_ids)
        self.special_token_ids = backend.special_token_ids()
        self.vocab_size = max(backend.vocabulary().values(), default=-1) + 1
        self._adjust_bos = self._bos_adjustment(add_bos_token)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer of a checkpoint.

        Args:
            folder: Path of its folder, or of its GGUF file.

        Raises:
            CheckpointNotFoundError: The folder has no tokenizer.
            CheckpointCorruptError: One of its files is invalid.
        """
        folder = Path(folder)
        if not folder.exists():
            raise CheckpointNotFoundError(f"there is no folder {folder} to read a tokenizer from")
        config = read_json_object(folder / "tokenizer_config.json")
        backend = _load_backend(folder, config)
        special_tokens = _special_tokens(config, folder)
        add_bos_token = config.get("add_bos_token")
        return cls(
            backend,
            special_tokens=special_tokens,
            eos_token_ids=_eos_token_ids(backend, special_tokens, folder),
            add_bos_token=add_bos_token if isinstance(add_bos_token, bool) else None,
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with the tokenizer's begin-of-text token if it adds one."""
        token_ids = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return self._adjust_bos(token_ids) if add_special_tokens else token_ids

    def encode_broken(
        self, text: str, breaks: Sequence[int], add_special_tokens: bool = False
    ) -> list[int]:
        """Return the ids of a text in which no special token spans a break.

        Args:
            text: Text with its own special tokens.
            breaks: Ascending positions in the text.
            add_special_tokens: True to add the tokenizer's own, as `encode` does.
        """
        bounds = [0, *breaks, len(text)]
        token_ids = self.backend.encode_pieces([text[i:j] for i, j in pairwise(bounds)])
        if not add_special_tokens:
            return token_ids
        before, after = self._added_tokens()
        return [*before, *token_ids, *after]

    def _added_tokens(self) -> tuple[list[int], list[int]]:
        """Return the ids that `encode` adds before and after a text."""
        whole, bare = self.encode("a"), self.encode("a", add_special_tokens=False)
        starts = range(len(whole) - len(bare) + 1)
        start = next((i for i in starts if whole[i : i + len(bare)] == bare), 0)
        return whole[:start], whole[start + len(bare) :]

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least; quick, as nothing is tokenized."""
        return self.backend.least_tokens(text)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids; bytes that are not valid UTF-8 become U+FFFD."""
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds to a text; maybe only part of a character."""
        return self._decoding.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """Return the text of a token on its own, as logprobs show it."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def text_stream(
        self,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
        shown: frozenset[int] = frozenset(),
    ) -> TextStream:
        """Return an incremental decoder that continues a prompt.

        Args:
            prompt_token_ids: Token ids of the prompt.
            skip_special_tokens: Whether special tokens are left out.
            shown: Special tokens that are not left out.
        """
        hidden = self.special_token_ids if skip_special_tokens else frozenset()
        return self._decoding.stream(prompt_token_ids, hidden - shown if shown else hidden)

    @property
    def special_token_texts(self) -> dict[int, str]:
        """Texts of the special tokens by their ids."""
        texts = {i: self.backend.id_to_token(i) for i in sorted(self.special_token_ids)}
        return {i: text for i, text in texts.items() if text is not None}

    @property
    def special_spellings(self) -> list[str]:
        """Texts of the special tokens, and of those that end a completion."""
        ids = sorted(self.special_token_ids.union(self.eos_token_ids))
        return [text for i in ids if (text := self.backend.id_to_token(i)) is not None]

    @cached_property
    def _decoding(self) -> Decoding:
        return decoding_of(self.backend)

    def _bos_adjustment(self, add_bos_token: bool | None) -> Callable[[list[int]], list[int]]:
        """Return a function that applies `add_bos_token` of tokenizer_config.json to encoded ids.

        The post-processor in tokenizer.json usually does so already; some checkpoints set it in
        the config alone.
        """
        bos = self.backend.token_to_id(self.special_tokens.get("bos_token", ""))
        is_added = self.backend.encode("", add_special_tokens=True)[:1] == [bos]
        if bos is None or add_bos_token is None or add_bos_token == is_added:
            return lambda token_ids: token_ids
        if add_bos_token:
            return lambda token_ids: [bos, *token_ids]
        return lambda token_ids: token_ids[1:]


def _load_backend(folder: Path, config: dict[str, Any]) -> TokenizerBackend:
    path = folder / "tokenizer.json"
    text = small_file_text(folder, path.name)
    if text is None and folder.is_file():
        raise CheckpointNotFoundError(
            f"{folder} contains no tokenizer; give the folder of one with --tokenizer"
        )
    if text is None:
        return _load_with_transformers(folder, config)
    try:
        return FastBackend(tokenizers.Tokenizer.from_str(text))
    except Exception as error:  # `tokenizers` raises plain Exception and nothing else
        raise CheckpointCorruptError(
            f"{path} is not a tokenizer ({error}); download the checkpoint again"
        ) from error


def _load_with_transformers(folder: Path, config: dict[str, Any]) -> TokenizerBackend:
    """Load a tokenizer with transformers; imported by name, since it is an optional dependency."""
    logger.warning(
        "%s has no tokenizer.json: loading the tokenizer with transformers, which loads torch "
        "and takes seconds",
        folder,
    )
    auto = import_module("transformers").AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        if "AutoTokenizer" in (config.get("auto_map") or ()):
            raise CheckpointNotFoundError(
                f"{folder} has no tokenizer.json, and its tokenizer is Python code, which is never "
                "run, not even with --trust-remote-code; save it as a tokenizer.json, or give "
                "another folder with --tokenizer"
            ) from error
        raise CheckpointNotFoundError(
            f"{folder} contains no tokenizer: there is no tokenizer.json, and transformers finds "
            f"none either ({error}); give another folder with --tokenizer"
        ) from error
    return FastBackend(tokenizer.backend_tokenizer) if tokenizer.is_fast else SlowBackend(tokenizer)


def _special_tokens(config: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the texts of the named special tokens; the files have each as text or as an object."""
    found = read_json_object(folder / "special_tokens_map.json") | {
        name: value for name, value in config.items() if value is not None
    }
    tokens = {}
    for name in TOKEN_NAMES:
        value = found.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _eos_token_ids(
    backend: TokenizerBackend, special_tokens: dict[str, str], folder: Path
) -> tuple[int, ...]:
    own = backend.token_to_id(special_tokens.get("eos_token", ""))
    named = _declared_eos(folder / "generation_config.json")
    if own is None and not named:
        named = _declared_eos(folder / "config.json")
    found = ([] if own is None else [own]) + named
    return tuple(dict.fromkeys(found))


def _declared_eos(path: Path) -> list[int]:
    """Return the ids of a file; those of a nested text model's config if there are no others."""
    values = read_json_object(path)
    inner = values.get("text_config")
    declared = values.get("eos_token_id")
    if declared is None and isinstance(inner, dict):
        declared = inner.get("eos_token_id")
    listed = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in listed):
        raise CheckpointCorruptError(
            f"{path}: eos_token_id must be a token id or a list of token ids, got {declared!r}"
        )
    return listed
