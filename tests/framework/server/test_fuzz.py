"""Any JSON body gets a completion or a 4xx in OpenAI's format, and the server goes on."""

import re

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.config import PluginSettings
from quire.plugins.loading import load_plugins
from quire.server.wire.fields import REFUSED
from quire.server.wire.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

ROUTES = {
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "Hi"}]}),
    "/v1/completions": (CompletionBody, {"prompt": "Hi"}),
    "/tokenize": (TokenizeBody, {"prompt": "Hi"}),
    "/detokenize": (DetokenizeBody, {"tokens": [300]}),
}
WORDS = st.sampled_from(
    ["type", "function", "name", "text", "content", "role", "user", "tool", "json_schema", "schema",
     "required", "auto", "none", "regex", "choice", "include_usage", "arguments", "tool_calls",
     "", "(a+)+b", "\x00", "\u202e", "é"]
)  # fmt: skip
NUMBERS = st.integers() | st.integers(-3, 40) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def sampler_fields():
    """Names of the request fields of all samplers that are installed, in their order."""
    entries = load_plugins(PluginSettings()).registries.samplers.offers()
    fields = (field for entry in entries for field in entry.capabilities.fields)
    return list(dict.fromkeys(field.name for field in fields))


SAMPLER_FIELDS = sampler_fields()


def bodies(kind):
    names = [info.encode_name for info in msgspec.structs.fields(kind)]
    names = [name for name in names if name != "stream"]
    others = [*SAMPLER_FIELDS, *REFUSED, "warmth", "temprature", "stream_options.odd"]
    return st.dictionaries(st.sampled_from([*names, *others]), VALUES, max_size=4)


@pytest.fixture(scope="module")
def http(module_server):
    with httpx.Client(base_url=module_server.url, timeout=20) as client:
        yield client


@pytest.mark.parametrize("num_examples", [20, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("path", "stream"),
    [
        *((path, False) for path in ROUTES),
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
    ],
)
def test_no_body_is_a_server_error(http, path, stream, num_examples):
    kind, valid = ROUTES[path]

    @settings(max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(bodies(kind), st.booleans())
    def check(fields, keeps_valid):
        body = valid | fields if keeps_valid else fields
        if stream:
            body["stream"] = True
        response = http.post(
            path,
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
        )
        assert response.status_code in (200, 400, 404), response.text
        assert '"server_error"' not in response.text
        assert not re.search(r"0x[0-9a-f]{6,}|Traceback", response.text)
        if response.status_code != 200:
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"

    check()
    assert http.get("/readyz").status_code == 200
