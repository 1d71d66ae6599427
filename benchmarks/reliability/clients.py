"""R2: responses as OpenAI's own client reads them, with the types of its schema checked."""

from collections.abc import Callable
from typing import Any

import openai
from row import Limits, Measured
from served import serve

MESSAGES: list[Any] = [{"role": "user", "content": "What is quire?"}]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "n", "strict": True, "schema": {"enum": ["yes", "no"]}},
}
CHATS: tuple[dict[str, Any], ...] = (
    {}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}, {"stop": ["."]}, {"max_tokens": 1},
    {"response_format": SCHEMA}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"},
    {"seed": 1, "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
    {"max_completion_tokens": 4, "messages": [{"role": "developer", "content": "Be brief"}]},
)  # fmt: skip
COMPLETIONS: tuple[dict[str, Any], ...] = (
    {}, {"n": 2}, {"logprobs": 2}, {"echo": True}, {"prompt": ["a", "b"]}, {"prompt": [5, 6]},
    {"stop": "e"}, {"best_of": 2},
)  # fmt: skip
REFUSED: tuple[tuple[dict[str, Any], type[openai.APIStatusError]], ...] = (
    ({"n": 0}, openai.BadRequestError),
    ({"temperature": "hot"}, openai.BadRequestError),
    ({"model": "nothing"}, openai.NotFoundError),
    ({"extra_body": {"temprature": 1}}, openai.BadRequestError),
)


def strict_client(limits: Limits) -> Measured:
    """Send requests by the installed client, which checks the types of all responses."""
    del limits
    wrong, num = [], 0
    with (
        serve() as server,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="none", _strict_response_validation=True
        ) as client,
    ):
        for name, call in _calls(client):
            num += 1
            try:
                call()
            except (openai.APIError, AssertionError) as error:
                wrong.append(f"{name}: {type(error).__name__}")
    listed = f": {'; '.join(wrong)}" if wrong else ""
    text = (
        f"{num - len(wrong)} of {num} calls by openai {openai.__version__}, strict{listed}; other "
        "major versions, and the published openapi.yaml, were not tried"
    )
    return Measured(text, False)


def _calls(client: openai.OpenAI) -> list[tuple[str, Callable[[], object]]]:
    """Return the calls, with their names."""
    model = client.models.list().data[0].id
    chat, completion = client.chat.completions.create, client.completions.create
    calls: list[tuple[str, Callable[[], object]]] = [
        ("models.list", client.models.list),
        ("models.retrieve", lambda: client.models.retrieve(model)),
    ]
    for fields in CHATS:
        body = {"model": model, "messages": MESSAGES, "max_tokens": 8} | fields
        if "max_completion_tokens" in fields:
            del body["max_tokens"]
        calls.append((f"chat {fields}", lambda body=body: chat(**body)))
        calls.append((f"chat stream {fields}", lambda body=body: list(chat(**body, stream=True))))
    for fields in COMPLETIONS:
        body = {"model": model, "prompt": "Once", "max_tokens": 8} | fields
        calls.append((f"completion {fields}", lambda body=body: completion(**body)))
    for fields, error in REFUSED:
        body = {"model": model, "messages": MESSAGES} | fields
        calls.append((f"refused {fields}", lambda body=body, error=error: _fails(body, error)))

    def _fails(body: dict[str, Any], error: type[openai.APIStatusError]) -> None:
        try:
            chat(**body)
        except error as raised:
            if raised.param is None or raised.code is None or raised.type is None:
                raise AssertionError(f"{raised} has no field, code or type") from raised
            return
        raise AssertionError("the request was served")

    return calls
