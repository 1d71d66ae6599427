"""R3: a stream cut anywhere gives what the whole text gives, for every registered parser."""

import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from row import Limits, Measured

from quire.config import PluginSettings
from quire.plugins.loading import load_plugins
from quire.testing.stream_parsing import StreamParserContract

TESTS = Path(__file__).parents[2] / "tests" / "plugins"
KINDS = ("tool_parsers", "reasoning_parsers")
MAX_PIECES = 8
NUM_RANDOM = 1500  # splits of each text into more than three pieces
Kit = StreamParserContract[Any, Any, Any]


def parser_splits(limits: Limits) -> Measured:
    """Compare streams with whole texts, for each sample of each parser's kit."""
    del limits
    registries = load_plugins(PluginSettings()).registries
    num_cases, num_parsers, wrong = 0, 0, []
    for kind in KINDS:
        kits = {kit.parser: kit for kit in _kits(TESTS / kind)}
        for entry in getattr(registries, kind).offers():
            num_parsers += 1
            parser = getattr(registries, kind).get(entry.name)
            if parser not in kits:
                wrong.append(f"{entry.name} has no samples")
                continue
            for is_equal in _cases(kits[parser]()):
                num_cases += 1
                if not is_equal:
                    wrong.append(entry.name)
    listed = f" ({', '.join(sorted(set(wrong)))})" if wrong else ""
    text = (
        f"{num_cases - len(wrong):,} of {num_cases:,} streams equal the whole{listed}: "
        f"{num_parsers} parsers, all splits in two and three and random ones, of texts as they "
        "are, cut off, and without a character"
    )
    return Measured(text, not wrong and num_cases >= 200_000)


def _kits(folder: Path) -> Iterator[Any]:
    """Yield the conformance kits that the tests of a kind fill in."""
    for path in sorted(folder.glob("test_*.py")):
        for value in vars(_module(path)).values():
            is_kit = isinstance(value, type) and issubclass(value, StreamParserContract)
            if is_kit and "samples" in vars(value):
                yield value


def _module(path: Path) -> ModuleType:
    name = f"{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _cases(kit: Kit) -> Iterator[bool]:
    """Yield for each stream whether it gives what its whole text gives."""
    for sample in kit.samples:
        half = len(sample.text) // 2
        without_one = sample.text[:half] + sample.text[half + 1 :]
        for text in (sample.text, sample.text[: half + half // 2], without_one):
            whole = kit.read(sample, [text])
            for cuts in _splits(len(text)):
                yield kit.read(sample, _pieces(text, cuts)) == whole


def _splits(length: int) -> Iterator[Sequence[int]]:
    """Yield all places of one and of two cuts, and random places of more."""
    for first in range(1, length):
        yield (first,)
        yield from ((first, second) for second in range(first + 1, length))
    rng = random.Random(length)
    for _ in range(NUM_RANDOM if length > MAX_PIECES else 0):
        yield sorted(rng.sample(range(1, length), rng.randint(3, MAX_PIECES - 1)))


def _pieces(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *cuts, len(text)]
    return [text[start:end] for start, end in pairwise(edges)]
