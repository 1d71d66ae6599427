"""A word has the same tokens wherever it stands, so that copying it is copying tokens.

Byte-level BPE whose pre-tokenizer keeps blanks apart from words and digits apart from each other;
signs may hold a blank between them (`", "`), which makes JSON short. Every byte is a token, so
every text survives the way there and back.

    python -m recipe.tokenizer
"""

from __future__ import annotations

import json
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from recipe.data import lessons
from recipe.template import CHECKPOINT

VOCAB_SIZE = 1024
CONTEXT = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
_PIECES = r"\p{L}\p{M}*(?:[\p{L}\p{M}]*)|\p{N}|[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*|\s"


def train(seed: int, num_conversations: int = 8000) -> Tokenizer:
    """Learn the merges from training conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    texts = (_without_marks(c.text()) for c in islice(lessons(seed, stage=1), num_conversations))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return tokenizer


def save(tokenizer: Tokenizer) -> None:
    """Write the tokenizer's files into the checkpoint."""
    CHECKPOINT.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(CHECKPOINT / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in SPECIAL,
            }
            for token in (*SPECIAL, *MARKS)
        },
    }
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    _write_json("tokenizer_config.json", config)
    _write_json("special_tokens_map.json", special)


def _without_marks(text: str) -> str:
    for mark in (*MARKS, *SPECIAL):
        text = text.replace(mark, "\n")
    return text


def _write_json(name: str, content: object) -> None:
    (CHECKPOINT / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    save(train(seed=1))
