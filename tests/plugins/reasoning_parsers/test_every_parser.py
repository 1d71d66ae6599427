"""Every registered reasoning parser reads the thoughts of its format, and any split gives the same.

Parsers come from the registry, so a new one is tested, or fails for want of a spelling.
"""

import random

import pytest

from quire.plugins.loading import load_plugins
from quire.testing.parsing.fragments import fragments_of
from quire.testing.parsing.hostile_texts import HostileTexts
from quire.testing.parsing.parser_work import work_of
from quire.testing.parsing.splits import in_groups, random_cuts
from quire.testing.parsing.token_streams import token_streams
from quire.testing.reasoning import ReasoningParserContract, ReasoningSample

THINK = ("<think>", "</think>")
SPELLINGS = {
    "granite": ("Here is my thought process:", "Here is my response:"),
    "mistral": ("[THINK]", "[/THINK]"),
    "gemma4": ("<|channel>thought\n", "<channel|>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "openai_gptoss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
} | dict.fromkeys(
    (
        "think_tags", "deepseek_r1", "deepseek_v3", "deepseek_v4", "qwen3", "holo2", "glm45",
        "kimi_k2", "minimax_m2", "granite_thinking", "nemotron_v3", "hunyuan_a13b", "ernie45",
        "olmo3", "step3", "step3p5",
    ),
    THINK,
)  # fmt: skip
IN_CONTENT = {"minimax_m2_append_think"}  # the thoughts stay in the content
# A header is no text for the user; a marker that the prompt has is written again.
HAS_MORE_OR_LESS = {"openai_gptoss", *IN_CONTENT}
NUM_CASES = 1_000  # splits that are compared, of all parsers together
NUM_SLOW_CASES = 40_000
NUM_SPLITS = 8
MAX_LINES = 80  # of Python, for a parser after the first one


def names():
    """Return a name of each registered parser."""
    references = {}
    for entry in load_plugins().registries.reasoning_parsers.offers():
        is_described = entry.capabilities.tokenizer_config_key is not None  # by a checkpoint
        if not entry.name.startswith(".") and not is_described:  # "." of kinds of files
            known = references.setdefault(entry.reference, entry.name)
            if known not in SPELLINGS:
                references[entry.reference] = entry.name
    return sorted(references.values())


each_parser = pytest.mark.parametrize("name", names())


def test_each_registered_parser_has_a_spelling():
    assert set(names()) <= {*SPELLINGS, *IN_CONTENT}


def samples_of(name):
    begin, end = SPELLINGS.get(name, THINK)
    thought, content = "Let me see: 1 < 2,\n\nso [yes].", "Yes, it is {so}."
    if name in IN_CONTENT:
        text = f"{begin}\n{thought}\n{end}\n\n{content}"
        return (ReasoningSample(text, reasoning="", content=text),)
    return (
        ReasoningSample(f"{begin}\n{thought}\n{end}\n\n{content}", thought, content),
        ReasoningSample(f"{begin}{thought}{end}{content}", thought, content),
    )


def kit_of(name):
    entry = load_plugins().registries.reasoning_parsers.entry(name)
    parser = load_plugins().registries.reasoning_parsers.get(name)
    attributes = {
        "parser": parser,
        "samples": samples_of(name),
        "markers": entry.capabilities.markers,
    }
    return type(f"Kit_{name}", (ReasoningParserContract,), attributes)()


@each_parser
def test_a_thought_and_an_answer_are_told_apart(name):
    kit = kit_of(name)
    for sample in kit.samples:
        parsed = kit.read(sample, [sample.text])
        parts = (parsed.reasoning.strip(), parsed.content.strip())
        assert parts == (sample.reasoning, sample.content)


@each_parser
def test_markers_are_built_once_for_all_completions(name):
    parser = load_plugins().registries.reasoning_parsers.get(name)
    parser("")
    assert work_of(lambda: parser("")).num_lines <= MAX_LINES


@each_parser
def test_blanks_at_each_place_lose_nothing(name):
    if name not in HAS_MORE_OR_LESS:
        kit_of(name).test_blanks_at_each_place_lose_nothing()
        kit_of(name).test_very_many_blanks_lose_nothing()


@each_parser
def test_any_split_of_any_text_gives_the_same(name):
    num_each = -(-NUM_CASES // len(names()))
    assert compare_splits(name, num_each, seed=1) >= num_each


@pytest.mark.slow
@each_parser
def test_any_split_of_very_many_texts_gives_the_same(name):
    num_each = -(-NUM_SLOW_CASES // len(names()))
    assert compare_splits(name, num_each, seed=2) >= num_each


def compare_splits(name, num_cases, seed):
    """Compare splits of generated texts with the text in one piece; return their number."""
    kit, chance = kit_of(name), random.Random(f"{name} {seed}")
    texts = tuple(sample.text for sample in kit.samples)
    streams = token_streams(texts, kit.format_markers())
    fragments = [*SPELLINGS.get(name, THINK) * 2, *kit.format_markers() * 2, *fragments_of(texts)]
    hostile = HostileTexts(texts, fragments, seed)
    num_compared = 0
    while num_compared < num_cases:
        (text,) = hostile.first(1)
        begin, _ = SPELLINGS.get(name, THINK)
        prompt = chance.choice(
            ["", "", "assistant\n", f"assistant\n{begin}", f"assistant\n{begin}\n"]
        )
        sample = ReasoningSample(text, "", "", prompt)
        whole = kit.read(sample, [text])
        for _ in range(NUM_SPLITS):
            deltas = chance.choice(streams).deltas(text)
            split = chance.choice([random_cuts(text, chance), deltas, in_groups(deltas, chance)])
            assert kit.read(sample, split) == whole, f"the split {split} gives another result"
            num_compared += 1
        if name not in HAS_MORE_OR_LESS:
            kit.check_nothing_lost(sample, text)
    return num_compared
