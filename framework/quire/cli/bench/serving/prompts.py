"""Prompts of a load: random ones of wanted lengths, with shared prefixes, or those of a file."""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import SettingsError

FIRST_TOKEN_ID = 10  # ids below are often special tokens
CHARACTERS_PER_TOKEN = 4  # of the answers in a file, whose lengths the requests take
MAX_FILE_BYTES = 2**30
MAX_ANSWER_TOKENS = 2048
USERS, ASSISTANTS = {"human", "user"}, {"gpt", "assistant", "chatgpt"}
TEXT = (
    "a about after all and any as at back be because but by can come could day do even first for "
    "from get give go good have he her here him his how if in into it its just know like look make "
    "many me more my new no not now of on one only or other our out over people say see she so "
    "some take than that the their them then there these they think this time to two up us use "
    "want way we well what when which who will with work would year you your"
)
WORDS = TEXT.split()

Length = Callable[[random.Random], int]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of a load.

    Attributes:
        prompt: Token ids or text; a conversation in OpenAI's format for the chat route.
        max_tokens: Tokens to generate at most.
    """

    prompt: list[int] | str | list[dict[str, Any]]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """Random prompts.

    Attributes:
        input_len: Tokens of a prompt, the shared prefix not included.
        output_len: Tokens of a completion.
        prefix_len: Tokens of the prefixes that prompts share.
        num_prefixes: Number of different prefixes.
        vocab_size: Token ids are below this.
        is_chat: Whether prompts are messages of words instead of token ids; one word is at least
            one token.
    """

    input_len: Length
    output_len: Length
    prefix_len: int = 0
    num_prefixes: int = 1
    vocab_size: int = 1000
    is_chat: bool = False

    def requests(self, count: int, rng: random.Random) -> list[LoadRequest]:
        """Return requests with new prompts."""
        draw = self._words if self.is_chat else self._token_ids
        prefixes = [draw(self.prefix_len, rng) for _ in range(self.num_prefixes)]
        return [self._request(prefixes[i % len(prefixes)], draw, rng) for i in range(count)]

    def _request(
        self, prefix: list[Any], draw: Callable[..., list[Any]], rng: random.Random
    ) -> LoadRequest:
        tokens = prefix + draw(self.input_len(rng), rng)
        message = {"role": "user", "content": " ".join(map(str, tokens))}
        return LoadRequest([message] if self.is_chat else tokens, self.output_len(rng))

    def _token_ids(self, count: int, rng: random.Random) -> list[int]:
        return [rng.randrange(FIRST_TOKEN_ID, self.vocab_size) for _ in range(count)]

    @staticmethod
    def _words(count: int, rng: random.Random) -> list[str]:
        return rng.choices(WORDS, k=count)


@dataclass(frozen=True, slots=True)
class FilePrompts:
    """Prompts of a file.

    Attributes:
        entries: Prompts and the tokens of their completions.
    """

    entries: list[LoadRequest]

    def requests(self, count: int, rng: random.Random) -> list[LoadRequest]:
        """Return random ones, each once before one is taken again."""
        found: list[LoadRequest] = []
        while len(found) < count:
            found += rng.sample(self.entries, len(self.entries))
        return found[:count]


def length_of(mean: int, distribution: str, spread: float) -> Length:
    """Return a distribution of lengths.

    Args:
        mean: Mean number of tokens.
        distribution: `fixed`; `uniform`, from (1 - spread) to (1 + spread) of the mean; or
            `lognormal`, whose logarithm has the standard deviation `spread`.
        spread: Width of the distribution.
    """
    match distribution:
        case "uniform":
            low, high = max(1, round(mean * (1 - spread))), max(1, round(mean * (1 + spread)))
            return lambda rng: rng.randint(low, high)
        case "lognormal":
            center = math.log(mean) - spread**2 / 2  # so that the mean is the wanted one
            return lambda rng: max(1, round(rng.lognormvariate(center, spread)))
        case _:
            return lambda _: mean


def read_prompts(path: Path, output_len: int | None, *, is_chat: bool) -> FilePrompts:
    """Read prompts from a file with a JSON object in each line, or a JSON list of objects.

    An object has `prompt`, `messages`, or `conversations` as ShareGPT has them, of which the first
    question is taken; and perhaps `max_tokens`.

    Args:
        path: Path of the file.
        output_len: Tokens of each completion; None: `max_tokens`, or those of the answer in the
            file at four characters a token.
        is_chat: Whether they are sent as conversations.

    Raises:
        SettingsError: The file is missing, too large, or has no prompts.
    """
    if not path.is_file():
        raise SettingsError(f"no such file: {path}")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise SettingsError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    found = [
        _read_entry(entry, f"{path}, entry {number}", output_len, is_chat)
        for number, entry in enumerate(_entries(path), 1)
    ]
    entries = [entry for entry in found if entry is not None]
    if not entries:
        raise SettingsError(f"{path} has no prompts")
    return FilePrompts(entries)


def _entries(path: Path) -> Iterator[Any]:
    text = path.read_text(encoding="utf-8")
    try:
        if text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except ValueError as error:
        raise SettingsError(f"{path} is neither JSON lines nor a JSON list: {error}") from None


def _read_entry(
    entry: Any, where: str, output_len: int | None, is_chat: bool
) -> LoadRequest | None:
    """Return the request of an entry; None for a conversation without a question."""
    if not isinstance(entry, dict):
        raise SettingsError(f"{where} is no object")
    messages, answer = _question(entry, where)
    if not messages:
        return None
    prompt = messages if is_chat else str(messages[-1]["content"])
    return LoadRequest(prompt, output_len or entry.get("max_tokens") or _answer_len(answer))


def _question(entry: dict[str, Any], where: str) -> tuple[list[dict[str, Any]], str]:
    """Return the messages up to the first question, and its answer."""
    prompt = entry.get("prompt")
    messages = entry.get("messages") or _messages(entry.get("conversations"), where)
    if messages is None and not isinstance(prompt, str):
        raise SettingsError(f"{where} has no `prompt`, `messages` or `conversations`")
    if messages is None:
        return [{"role": "user", "content": prompt}], str(entry.get("completion", ""))
    for index, message in enumerate(messages, 1):
        if message["role"] in USERS:
            answers = messages[index : index + 1]
            return messages[:index], str(answers[0]["content"]) if answers else ""
    return [], ""


def _messages(turns: Any, where: str) -> list[dict[str, Any]] | None:
    """Return the turns of ShareGPT in OpenAI's format."""
    if turns is None:
        return None
    roles = dict.fromkeys(USERS, "user") | dict.fromkeys(ASSISTANTS, "assistant")
    try:
        return [
            {"role": roles.get(turn["from"], turn["from"]), "content": turn["value"]}
            for turn in turns
        ]
    except (TypeError, KeyError):
        raise SettingsError(f"{where}: conversations must have `from` and `value`") from None


def _answer_len(answer: str) -> int:
    return min(max(1, len(answer) // CHARACTERS_PER_TOKEN), MAX_ANSWER_TOKENS)
