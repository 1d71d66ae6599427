"""Messages on the channel `analysis` are reasoning, and all others content."""

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.testing.reasoning import ReasoningParserContract, ReasoningSample
from quire_reasoning_parsers.channel_router import MAX_HEADER, ChannelRouter

BEGUN = "<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"


class TestChannelRouter(ReasoningParserContract):
    """The kit that every reasoning parser passes."""

    parser = ChannelRouter
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample(f"{ANALYSIS}Hm.<|end|>{FINAL}Yes.<|return|>", "Hm.", "Yes.", BEGUN),
        ReasoningSample(f"{ANALYSIS}Hm.<|end|>{FINAL}Yes.", "Hm.", "Yes."),
        ReasoningSample("<|channel|>final<|message|>Yes.", "", "Yes.", BEGUN),
        ReasoningSample(
            f"{ANALYSIS}Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
            f"{FINAL}Yes.",
            "Hm.",
            "I look.\nYes.",
            BEGUN,
        ),
        ReasoningSample(f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b", "a\nb", "", BEGUN),
        ReasoningSample(f"{ANALYSIS}a{FINAL}b", "a", "b", BEGUN),
        ReasoningSample(f"{ANALYSIS}a<|channel|>final<|message|>b", "a", "b", BEGUN),
        ReasoningSample(f"<|channel|>{ANALYSIS}a<|end|>", "a", "", BEGUN),
        ReasoningSample("<|channel|>analysis?<|message|>a", "a", "", BEGUN),
        ReasoningSample("analysis<|message|>a", "a", "", BEGUN),
        ReasoningSample("<|channel|>analysis<|channel|>final<|message|>a", "", "a", BEGUN),
        ReasoningSample("<|start|>assistantfinal<|message|>a", "", "a"),
        ReasoningSample(
            "<|channel|>analysis to=browser.search code<|message|>{}<|call|>", "{}", "", BEGUN
        ),
        ReasoningSample(
            " to=functions.final<|channel|>analysis<|constrain|>json<|message|>{}", "{}", "", BEGUN
        ),
        ReasoningSample(
            "<|channel|>commentary to=functions.analysis <|constrain|>json<|message|>{}",
            "",
            "{}",
            BEGUN,
        ),
        ReasoningSample("Hm.<|end|>", "Hm.", "", f"{BEGUN}{ANALYSIS}"),
        ReasoningSample("Yes.", "", "Yes.", f"{BEGUN}<|channel|>final<|message|>So: "),
        ReasoningSample("analysis<|message|>a", "a", "", f"{BEGUN}<|channel|>"),
        ReasoningSample("Yes, it is.", "", "Yes, it is.", BEGUN),
        ReasoningSample("to be", "", "to be", BEGUN),
        ReasoningSample("assist<|end|>", "", "assist", BEGUN),
        ReasoningSample("final answer", "", "final answer", BEGUN),
        ReasoningSample("1 <|x", "", "1 <|x", BEGUN),
        ReasoningSample(f"{ANALYSIS}Hm. <|en", "Hm. <|en", "", BEGUN),
        ReasoningSample("<|channel|>anal", "", "", BEGUN),
        ReasoningSample("", "", "", BEGUN),
        ReasoningSample(f"{ANALYSIS}a<|end|>\nYes.", "a", "\nYes.", BEGUN),
    )


def test_a_header_that_is_too_long_is_text():
    text = "<|channel|>" + "x" * MAX_HEADER
    parser = ChannelRouter(BEGUN)
    events = [event for piece in text for event in parser.feed(piece)]
    assert "".join(event.text for event in events).endswith("x" * MAX_HEADER)


def test_grammars_wait_for_the_final_message():
    parser = ChannelRouter(BEGUN)
    assert parser.is_thinking
    parser.feed(f"{ANALYSIS}Hm.<|end|><|start|>assistant<|channel|>final")
    assert parser.is_thinking
    parser.feed("<|message|>")
    assert not parser.is_thinking


fragments = st.sampled_from(
    ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>", "analysis",
     "final", "assistant", " to=functions.f", "a", "<|", "\n", "<", "e" * 130]
)  # fmt: skip


@given(
    st.lists(fragments, max_size=14), st.sampled_from(["", BEGUN, f"{BEGUN}{ANALYSIS}"]), st.data()
)
@settings(max_examples=1000, deadline=None)
def test_any_split_reads_the_same(parts, prompt, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    kit, sample = TestChannelRouter(), ReasoningSample(text, "", "", prompt)
    assert kit.read(sample, pieces) == kit.read(sample, [text])
