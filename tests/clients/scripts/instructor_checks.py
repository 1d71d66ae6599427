"""Instructor, in each mode of the APIs that quire has.

The demo model writes JSON, and calls functions, only where something makes it. So modes that ask
for that in the prompt alone get a schema, a regular expression or a choice of tools by
`extra_body`.
"""

from collections.abc import Iterable

import openai
from checks import MESSAGES, MODEL, check, check_of, raises, run
from instructor import Mode, from_openai
from pydantic import BaseModel


class Place(BaseModel):
    """A place."""

    is_city: bool


BODY = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "temperature": 0, "max_retries": 0}
NAMED = {"name": "place", "schema": Place.model_json_schema()}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": NAMED}}
REQUIRED = {"tool_choice": "required"}
FENCED = {"structured_outputs": {"regex": '```json\n\\{"is_city": (true|false)\\}\n```'}}


def client(url, mode):
    made = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    return from_openai(made, mode=mode)


def create(url, mode, kind=Place, **fields):
    return client(url, mode).chat.completions.create(response_model=kind, **(BODY | fields))


@check
def tools(url):
    assert isinstance(create(url, Mode.TOOLS), Place)


@check
def strict_tools(url):
    assert isinstance(create(url, Mode.TOOLS_STRICT), Place)


@check
def parallel_tools(url):
    made = list(create(url, Mode.PARALLEL_TOOLS, Iterable[Place], extra_body=REQUIRED))
    assert made
    assert all(isinstance(each, Place) for each in made)


@check
def json_schema(url):
    assert isinstance(create(url, Mode.JSON_SCHEMA), Place)


@check
def json_objects(url):
    assert isinstance(create(url, Mode.JSON, extra_body=SCHEMA), Place)


@check
def json_without_system_messages(url):
    assert isinstance(create(url, Mode.JSON_O1, extra_body=SCHEMA), Place)


@check
def json_in_markdown(url):
    assert isinstance(create(url, Mode.MD_JSON, extra_body=FENCED), Place)


@check
def usage_is_kept(url):
    made, completion = client(url, Mode.TOOLS).chat.completions.create_with_completion(
        response_model=Place, **BODY
    )
    assert isinstance(made, Place)
    assert completion.usage.completion_tokens > 0


@check
def objects_are_streamed_in_parts(url):
    *_, last = client(url, Mode.TOOLS).chat.completions.create_partial(response_model=Place, **BODY)
    assert last.is_city in (True, False)


@check
def errors_have_their_types(url):
    from instructor.core import InstructorRetryException

    with raises((openai.NotFoundError, InstructorRetryException)):
        create(url, Mode.TOOLS, model="nothing")


@check_of("/v1/responses")
def responses_tools(url):
    fields = {key: value for key, value in BODY.items() if key not in ("messages", "max_tokens")}
    made = client(url, Mode.RESPONSES_TOOLS).responses.create(
        input=MESSAGES, response_model=Place, max_output_tokens=200, **fields
    )
    assert isinstance(made, Place)


def anthropic_create(url, mode, **fields):
    import anthropic
    from instructor import from_anthropic

    made = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "max_retries": 0} | fields
    return from_anthropic(made, mode=mode).messages.create(response_model=Place, **body)


@check_of("/v1/messages")
def messages_tools(url):
    assert isinstance(anthropic_create(url, Mode.ANTHROPIC_TOOLS), Place)


run("instructor")
