"""Responses follow the schema that OpenAI publishes: null stands only where it allows null.

One field differs, as it does in OpenAI's own responses: an event of /v1/completions that is not the
last of its choice has a null `finish_reason`, for which the schema has no value. Log probabilities
of an echoed prompt begin with null, which the schema does not know either.
"""

import json

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT = {"messages": [{"role": "user", "content": "Call"}], "tools": [TOOL], "n": 2}
USAGE = {"stream_options": {"include_usage": True}}
VARIANTS = [
    {},
    {"logprobs": True, "top_logprobs": 2},
    {"stop": "script", "return_token_ids": True},
    {"max_tokens": 1},
    {"store": True, "user": "x", "service_tier": "auto"},
]


def post(served, path, body):
    response = httpx.post(f"{served.url}/v1/{path}", json=body, timeout=20)
    assert response.status_code == 200, response.text
    return response.text


def events(text):
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def check_usage(found, has_usage):
    """Check that `usage` is there only if it was asked for, and not null in the last event only."""
    if not has_usage:
        assert all("usage" not in event for event in found)
        return
    assert [event["usage"] is None for event in found] == [True] * (len(found) - 1) + [False]
    assert [not event["choices"] for event in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize("reply", ["I am a script.", "<t>hm</t>Yes [[f {}]]", "[[f {"])
@pytest.mark.parametrize("fields", VARIANTS)
@pytest.mark.parametrize("usage", [{}, USAGE])
def test_chats_follow_the_schema(served, reply, fields, usage):
    served.texts.by_prompt = {"Call": reply}
    ChatCompletion.model_validate_json(post(served, "chat/completions", CHAT | fields), strict=True)
    body = CHAT | fields | usage | {"stream": True}
    found = events(post(served, "chat/completions", body))
    for event in found:
        ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
    check_usage(found, bool(usage))
    ends = [c["finish_reason"] for event in found for c in event["choices"] if c["finish_reason"]]
    assert len(ends) == 2


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": 2}, {"echo": True}, {"return_token_ids": True}, {"max_tokens": 1}]
)
@pytest.mark.parametrize("usage", [{}, USAGE])
def test_completions_follow_the_schema_but_for_the_reason_of_no_end(served, fields, usage):
    body = {"prompt": ["one", "two"]} | fields
    Completion.model_validate_json(post(served, "completions", body), strict=True)
    found = events(post(served, "completions", body | usage | {"stream": True}))
    num_ends = 0
    for event in found:
        for choice in event["choices"]:
            num_ends += choice["finish_reason"] is not None
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        Completion.model_validate_json(json.dumps(event), strict=True)
    assert num_ends == 2
    check_usage(found, bool(usage))
