"""A raw prompt, without the chat template, is continued sensibly by the demo model."""

import pytest

from quire import LLM, SamplingParams

QUIRE = "quire is an LLM inference and serving engine whose parts are plugins."


@pytest.fixture(scope="module")
def llm():
    with LLM("demo") as made:
        yield made


@pytest.mark.parametrize(
    ("prompt", "continuation"),
    [
        (
            "What is quire?",
            f" {QUIRE}",
        ),
        (
            "what is quire?\n",
            QUIRE,
        ),
        ("Q: What is quire?\nA:", " quire is an LLM inference and serving engine whose parts"),
        ("quire is", " an LLM inference and serving engine whose parts are plugins."),
        ("A tool parser turns", " the text of a tool call into a function name and its arguments."),
        ("What is 7 + 5?", " 12"),
    ],
)
def test_a_raw_prompt_goes_on(llm, prompt, continuation):
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=60))
    assert output.outputs[0].text.startswith(continuation)
    assert output.outputs[0].finish_reason == "stop"


def test_the_defaults_give_a_continuation(llm):
    (output,) = llm.generate(["What is quire?"])
    assert output.outputs[0].text.startswith(" quire is an LLM")
