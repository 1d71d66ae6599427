"""A tour: four kinds of question in one batch, answered by the demo model, and who served what.

    python examples/tour.py

A plain question, a question whose answer must follow a JSON schema, a question that needs a tool
call, and one through a LoRA adapter. It exits with 1 if an answer is not what it must be.
"""

import json
import logging
import sys
import time
from typing import Any

from quire import LLM, RequestOutput, SamplingParams, StructuredOutputsParams

ADAPTER = "pirate"
GREEDY = SamplingParams(temperature=0, max_tokens=96)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "age": {"type": "integer"},
    },
    "required": ["name", "city", "age"],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
BY_SCHEMA = SamplingParams(
    temperature=0, max_tokens=96, structured_outputs=StructuredOutputsParams(json=PERSON)
)
QUESTIONS: list[dict[str, Any]] = [
    {"title": "A plain question", "ask": "What is quire?", "params": GREEDY},
    {
        "title": "An answer that follows a JSON schema",
        "ask": "Extract name, city and age: Mirelo lives in Taruno and is 31 years old.",
        "params": BY_SCHEMA,
    },
    {
        "title": "A question that needs a tool",
        "ask": "What is the weather in Belvora?",
        "params": GREEDY,
        "tools": [WEATHER],
    },
    {
        "title": f"The first question again, through the adapter {ADAPTER!r}",
        "ask": "What is quire?",
        "params": GREEDY,
        "adapter": ADAPTER,
    },
]


def main() -> int:
    """Ask, print, and check; returns the exit status."""
    logging.basicConfig(level=logging.WARNING)
    started = time.perf_counter()
    with LLM("demo", enable_lora=True) as llm:
        ready = time.perf_counter()
        outputs = ask(llm)
        seconds = time.perf_counter() - ready
        show(outputs)
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(
            f"{num_tokens} tokens in {seconds:.2f} s: {num_tokens / seconds:.0f} tokens/s, one "
            f"batch; ready {ready - started:.2f} s after the start\n"
        )
        show_parts(llm)
    problems = check(outputs)
    for problem in problems:
        print(f"not as it must be: {problem}", file=sys.stderr)
    return 1 if problems else 0


def ask(llm: LLM) -> list[RequestOutput]:
    """Ask all questions in one batch."""
    return llm.chat(
        [[{"role": "user", "content": question["ask"]}] for question in QUESTIONS],
        [question["params"] for question in QUESTIONS],
        tools=[question.get("tools", []) for question in QUESTIONS],
        lora_request=[question.get("adapter") for question in QUESTIONS],
    )


def show(outputs: list[RequestOutput]) -> None:
    """Print questions and answers."""
    for question, output in zip(QUESTIONS, outputs, strict=True):
        answer = output.outputs[0]
        print(f"{question['title']}\n  > {question['ask']}")
        if answer.text:
            print(f"  {answer.text}")
        for call in answer.tool_calls:
            print(f"  calls {call.name} with {call.arguments}")
        print()


def show_parts(llm: LLM) -> None:
    """Print which plugin served each part."""
    print("Who served what:")
    for choice in llm.composition.choices:
        print(f"  {choice.role:<26} {choice.name:<18} {choice.entry.source}")


def check(outputs: list[RequestOutput]) -> list[str]:
    """Return what is wrong with the answers."""
    plain, by_schema, with_tool, through_adapter = (output.outputs[0] for output in outputs)
    problems = []
    if "engine" not in plain.text:
        problems.append(f"the plain answer does not say what quire is: {plain.text!r}")
    person = {"name": "Mirelo", "city": "Taruno", "age": 31}
    if by_schema.finish_reason != "stop" or json.loads(by_schema.text) != person:
        problems.append(f"the extraction is {by_schema.text!r}")
    calls = [(call.name, json.loads(call.arguments)) for call in with_tool.tool_calls]
    if calls != [("get_weather", {"city": "Belvora"})]:
        problems.append(f"the tool calls are {calls}")
    if through_adapter.text == plain.text:
        problems.append("the adapter changes nothing")
    return problems


if __name__ == "__main__":
    sys.exit(main())
