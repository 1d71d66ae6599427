"""The tool-call parsers that plugins register, each once, and generated completions of them."""

import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from written_calls import SPELLINGS, TOOLS, Call, Spelling

from quire.interfaces.tool_parsing import ToolParser
from quire.plugins.loading import load_plugins
from quire.testing.parsing.fragments import fragments_of
from quire.testing.parsing.hostile_texts import HostileTexts
from quire.testing.tool_parsing import ToolParserContract, ToolSample

LETTERS = string.ascii_letters + string.digits
ODD = [
    *" \n\t,:;=()[]{}<>/|\"'`\\$%&#@!?-_.",
    "é",
    "漢",
    "\u00a0",
    "\u2028",
    "👩\u200d👧",
    "\uff5c",
    "e\u0301",
]
LEADS = ["", "Let me look.\n", "1 < 2, so: ", "Sure! ", "Größe 漢 👩\u200d👧\n\n"]


@dataclass(frozen=True, slots=True)
class Family:
    """A parser, and how its calls are written.

    Attributes:
        name: Name by which it is registered first.
        parser: The class.
        markers: Markers that it asks for.
        spelling: Spelling of its calls.
    """

    name: str
    parser: type[ToolParser]
    markers: tuple[str, ...]
    spelling: Spelling


@cache
def family_names() -> tuple[str, ...]:
    """Return the registered names: those with a spelling, and a name of each other parser."""
    names: set[str] = set()
    references: set[str] = set()
    offers = load_plugins().registries.tool_parsers.offers()
    entries = [
        entry
        for entry in offers
        if not entry.name.startswith(".")  # kinds of files
        and entry.capabilities.tokenizer_config_key is None  # described by a checkpoint
    ]
    for entry in sorted(entries, key=lambda each: each.name not in SPELLINGS):
        if entry.name in SPELLINGS or entry.reference not in references:
            names.add(entry.name)
            references.add(entry.reference)
    return tuple(sorted(names))


@cache
def family(name: str) -> Family:
    """Return a family by its name."""
    registry = load_plugins().registries.tool_parsers
    entry = registry.entry(name)
    if name not in SPELLINGS:
        raise LookupError(f"tests/parts/written_calls.py has no spelling of {name}")
    return Family(name, registry.get(name), entry.capabilities.markers, SPELLINGS[name])


class Completions:
    """A repeatable sequence of completions of a family, with what they are to give.

    Args:
        of: The family.
        seed: Number of the sequence.
    """

    def __init__(self, of: Family, seed: int) -> None:
        self._family = of
        self._chance = random.Random(f"{of.name} {seed}")

    def sample(self) -> ToolSample:
        """Return the next completion."""
        spelling, chance = self._family.spelling, self._chance
        lead = "" if spelling.is_bare else chance.choice(LEADS)
        num_calls = 1 if spelling.is_single else chance.choice([0, 1, 1, 1, 2, 3])
        if not num_calls:
            return ToolSample(lead, lead)
        calls = [self._call() for _ in range(num_calls)]
        expected = tuple((name, json.dumps(arguments)) for name, arguments in calls)
        return ToolSample(lead + spelling.write(calls), spelling.content(lead), expected)

    def _call(self) -> Call:
        chance = self._chance
        tool: dict[str, Any] = chance.choice(TOOLS)
        properties = tool["parameters"]["properties"]
        keys = [key for key in properties if chance.random() < 0.5]
        return tool["name"], {key: self._value(properties[key]["type"]) for key in keys}

    def _value(self, kind: str | list[str]) -> Any:
        chance = self._chance
        match kind:
            case "integer":
                return chance.choice([0, 1, -7, 10**12])
            case "number":
                return chance.choice([0.5, -74.0, 1e-9, 3])
            case "boolean":
                return chance.choice([True, False])
            case "object":
                return {
                    "lat": chance.choice([1.5, -2]),
                    "name": self._string(),
                    "deep": {"a": {"b": [[]]}},
                }
            case "array":
                return [self._string() for _ in range(chance.randint(0, 3))]
        return self._string()

    def _string(self) -> str:
        """Return a string of letters, or of anything that the format can write."""
        chance = self._chance
        letters = LETTERS if chance.random() < 0.4 else [*LETTERS, *ODD * 3]
        text = "".join(chance.choice(letters) for _ in range(chance.choice([1, 3, 8, 25])))
        return text if not any(each in text for each in self._family.spelling.forbidden) else "x"


def hostile_texts(of: Family, seed: int) -> HostileTexts:
    """Return hostile texts of a family."""
    texts = [completion.text for completion in _some(of)]
    return HostileTexts(texts, [*of.markers, *of.markers, *fragments_of(texts)], seed)


def _some(of: Family) -> Iterator[ToolSample]:
    completions = Completions(of, 0)
    return (completions.sample() for _ in range(8))


def contract_of(of: Family, samples: tuple[ToolSample, ...], **more: Any) -> ToolParserContract:
    """Return the kit for a family, of which single tests can be called.

    Args:
        of: The family.
        samples: Samples of the kit.
        more: Other attributes of it.
    """
    attributes = {"parser": of.parser, "samples": samples, "tools": TOOLS, "markers": of.markers}
    kit = type(f"Kit_{of.name}", (ValuesContract,), attributes | more)
    return kit()


class ValuesContract(ToolParserContract):
    """The kit, which compares arguments by value: in some formats their text is the parser's."""

    def is_expected(self, parsed, sample):
        """Return whether the content and the calls are those of the sample."""
        calls = [(name, json.loads(arguments)) for name, arguments in parsed.calls]
        expected = [(name, json.loads(arguments)) for name, arguments in sample.calls]
        return parsed.content == sample.content and calls == expected
