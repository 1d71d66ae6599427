"""Lessons of like length share a batch, so that little of it is padding.

Only answers are learned: the label of every token outside an assistant's turn is `IGNORED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from recipe.data import lessons
from recipe.template import CHECKPOINT, Conversation, Lesson, RawText

IGNORED = -100
_POOL = 1500  # lessons that are sorted by length together


@dataclass(frozen=True)
class Batch:
    """Padded conversations, B of at most T tokens."""

    input_ids: Tensor  # [B, T]
    labels: Tensor  # [B, T], IGNORED where nothing is learned


class Encoder:
    """Turns conversations into token ids and labels."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
        self._end, self._pad = (_id(tokenizer, t) for t in ("<|im_end|>", "<|endoftext|>"))

    def encode(self, lesson: Lesson) -> tuple[list[int], list[int]]:
        """The ids of a lesson and their labels."""
        if isinstance(lesson, RawText):
            return self._encode_raw(lesson)
        return self._encode_conversation(lesson)

    def _encode_raw(self, text: RawText) -> tuple[list[int], list[int]]:
        given, learned = (
            self._tokenizer.encode(part, add_special_tokens=False).ids
            for part in (text.prompt(), text.answer())
        )
        learned = [*learned, self._pad]
        return given + learned, [IGNORED] * len(given) + learned

    def _encode_conversation(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        ids = self._tokenizer.encode(conversation.text(), add_special_tokens=False).ids
        labels = [IGNORED] * len(ids)
        head = len(self._start)
        for start in range(len(ids) - head):
            if ids[start : start + head] == self._start:
                end = ids.index(self._end, start + head)
                labels[start + head : end + 1] = ids[start + head : end + 1]
        return ids, labels

    def pad(self, encoded: list[tuple[list[int], list[int]]]) -> Batch:
        """One batch, padded on the right."""
        longest = max(len(ids) for ids, _ in encoded)
        return Batch(
            torch.tensor([ids + [self._pad] * (longest - len(ids)) for ids, _ in encoded]),
            torch.tensor([lb + [IGNORED] * (longest - len(lb)) for _, lb in encoded]),
        )


def load_encoder() -> Encoder:
    """The encoder of the shipped tokenizer."""
    return Encoder(Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")))


def batches(
    stream: Iterator[Lesson], encoder: Encoder, tokens: int, longest: int, seed: int
) -> Iterator[Batch]:
    """Batches of about `tokens` tokens each, in random order, without end."""
    rng = Random(seed)
    while True:
        encoded = [encoder.encode(c) for c in islice(stream, _POOL)]
        kept = sorted((e for e in encoded if len(e[0]) <= longest), key=lambda e: len(e[0]))
        groups = list(_groups(kept, tokens))
        rng.shuffle(groups)
        for group in groups:
            yield encoder.pad(group)


def training_batches(seed: int, tokens: int, stage: int, longest: int = 448) -> Iterator[Batch]:
    """The batches of a training run."""
    return batches(lessons(seed, stage), load_encoder(), tokens, longest, seed)


def _id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise KeyError(token)
    return int(token_id)


def _groups(
    by_length: list[tuple[list[int], list[int]]], tokens: int
) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Runs of neighbours whose padded size stays within `tokens`; the short rest is dropped."""
    group: list[tuple[list[int], list[int]]] = []
    for entry in by_length:
        if group and len(entry[0]) * (len(group) + 1) > tokens:
            yield group
            group = []
        group.append(entry)
