"""Keys with limits, their usage, and the control routes, over HTTP."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

FILE = """
keys:
- {name: free, key: sk-free}
- {name: slow, key: sk-slow, requests-per-minute: 2}
- {name: short, key: sk-short, tokens-per-minute: 60}
- {name: single, key: sk-single, max-concurrent: 1}
- {name: pirate, key: sk-pirate, models: [pirate]}
- {name: late, key: sk-late, priority: 5}
"""
BODY = {"prompt": "The fox", "max_tokens": 8}


@pytest.fixture
def locked(serve, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(FILE)
    file.chmod(0o600)
    return serve(api_key_file=str(file), admin_key=("sk-root",))


def ask(served, key, path="/v1/completions", method="POST", **body):
    headers = {"authorization": f"Bearer {key}"}
    base = BODY if path.endswith("completions") else {"prompt": "The fox"}
    sent = {"json": base | body} if method == "POST" else {}
    return httpx.request(method, served.url + path, headers=headers, timeout=20, **sent)


def usage(served):
    found = ask(served, "sk-root", "/admin/usage", "GET").json()
    return {each["name"]: each["usage"] for each in found["data"]}, found["num_unauthorized"]


@pytest.mark.parametrize("stream", [False, True])
def test_requests_beyond_a_minutes_limit_get_429_and_then_openais_client_waits(locked, stream):
    for left in ("1", "0"):
        response = ask(locked, "sk-slow", stream=stream)
        assert response.status_code == 200
        assert response.headers["x-ratelimit-limit-requests"] == "2"
        assert response.headers["x-ratelimit-remaining-requests"] == left
        assert response.headers["x-ratelimit-reset-requests"].endswith("s")
    refused = ask(locked, "sk-slow", stream=stream)
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert 0 < int(refused.headers["retry-after-ms"]) <= 30_000
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    with (
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="sk-slow", max_retries=0) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.completions.create(model="demo", **BODY)
    assert ask(locked, "sk-free").status_code == 200
    assert ask(locked, "sk-slow", "/v1/models", "GET").status_code == 200
    assert usage(locked)[0]["slow"]["num_refused"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_reserved_and_what_is_left_comes_back(locked, stream):
    whole = ask(locked, "sk-short", stream=False).json()["usage"]["total_tokens"]
    left = int(ask(locked, "sk-short", stream=stream).headers["x-ratelimit-remaining-tokens"])
    assert left <= 60 - 2 * whole + 20  # the reservation of the second is still out, or used
    assert locked.server._accounts.of_keys()[2].tokens.level(0.0) <= 60 - 2 * whole + 1
    refused = ask(locked, "sk-short", prompt="The fox " * 20, stream=stream)
    assert refused.status_code == 429
    assert "60 tokens per minute" in refused.json()["error"]["message"]
    assert "retry-after" in refused.headers


def test_a_key_has_so_many_requests_at_the_same_time(locked, wait_for):
    locked.core.step_s = 0.05
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, locked, "sk-single")
        assert wait_for(lambda: bool(locked.core.running))
        refused = ask(locked, "sk-single")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert ask(locked, "sk-free").status_code == 200
        assert first.result().status_code == 200
    assert ask(locked, "sk-single").status_code == 200


def test_a_key_uses_and_sees_its_models_only(locked):
    assert ask(locked, "sk-pirate", model="pirate").status_code == 200
    for model in ("demo", None, "nothing"):
        for path in ("/v1/completions", "/tokenize"):
            refused = ask(locked, "sk-pirate", path, model=model)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                404,
                "model_not_found",
            )
    assert ask(locked, "sk-pirate", "/v1/models/demo", "GET").status_code == 404
    seen = ask(locked, "sk-pirate", "/v1/models", "GET").json()["data"]
    assert [card["id"] for card in seen] == ["pirate"]


@pytest.mark.parametrize(("given", "wanted"), [({}, 5), ({"priority": 1}, 5), ({"priority": 9}, 9)])
def test_the_priority_of_a_key_reaches_the_engine(locked, given, wanted):
    assert ask(locked, "sk-late", **given).status_code == 200
    assert locked.core.requests[-1].priority == wanted


def test_each_key_has_a_cache_salt_of_its_own_that_clients_cannot_make(locked):
    salts = []
    for key, given in [("sk-free", {}), ("sk-late", {}), ("sk-free", {"cache_salt": "x"})]:
        assert ask(locked, key, **given).status_code == 200
        salts.append(locked.core.requests[-1].cache_salt)
    assert len(set(salts)) == 3
    assert ask(locked, "sk-late", cache_salt=salts[0]).status_code == 200
    assert locked.core.requests[-1].cache_salt not in salts
    assert ask(locked, "sk-free", cache_salt="\n").status_code == 400
    assert not any("sk-" in salt or "free" in salt for salt in salts)


def test_one_key_and_keys_that_share_have_the_requests_own_salt(serve):
    for settings in (
        {"api_key": ("sk-1",)},
        {"api_key": ("sk-1", "sk-2"), "share_prefix_cache": True},
    ):
        served = serve(**settings)
        for given in ({}, {"cache_salt": "x"}):
            assert ask(served, "sk-1", **given).status_code == 200
            assert served.core.requests[-1].cache_salt == given.get("cache_salt")


def test_usage_is_counted_by_the_name_of_the_key(locked):
    locked.core.num_cached_tokens = 1
    first = ask(locked, "sk-free").json()["usage"]
    second = ask(locked, "sk-free", stream=True, stream_options={"include_usage": True})
    last = json.loads(second.text.split("data: ")[-2])["usage"]
    assert ask(locked, "sk-nobody").status_code == 401
    found, num_unauthorized = usage(locked)
    assert num_unauthorized == 1
    assert found["free"] == {
        "num_requests": 2,
        "num_refused": 0,
        "num_prompt_tokens": first["prompt_tokens"] + last["prompt_tokens"],
        "num_cached_tokens": 2,
        "num_completion_tokens": first["completion_tokens"] + last["completion_tokens"],
    }
    assert found["late"]["num_requests"] == 0


def test_a_request_that_its_client_leaves_counts_what_it_had(locked, wait_for):
    locked.core.step_s = 0.02
    headers = {"authorization": "Bearer sk-free"}
    body = BODY | {"stream": True}
    url = f"{locked.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers) as response:
        next(response.iter_lines())
    assert wait_for(lambda: usage(locked)[0]["free"]["num_prompt_tokens"] > 0)
    assert usage(locked)[0]["free"]["num_requests"] == 1


def test_control_routes_take_the_admin_key_only(locked):
    for path in ("/admin/keys", "/admin/usage"):
        assert ask(locked, "sk-root", path, "GET").status_code == 200
        refused = ask(locked, "sk-free", path, "GET")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert httpx.get(locked.url + path).status_code == 401


def test_the_admin_key_reads_but_does_not_generate(locked):
    for path in ("/v1/models", "/health", "/version", "/v1/plugins", "/openapi.json"):
        assert ask(locked, "sk-root", path, "GET").status_code == 200
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        refused = ask(locked, "sk-root", path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert not locked.core.requests


def test_the_list_of_keys_has_limits_and_no_key(locked):
    response = ask(locked, "sk-root", "/admin/keys", "GET")
    cards = {card["name"]: card["limits"] for card in response.json()["data"]}
    assert list(cards) == ["free", "slow", "short", "single", "pirate", "late"]
    assert cards["slow"]["requests_per_minute"] == 2
    assert cards["pirate"]["models"] == ["pirate"]
    assert "sk-" not in response.text


def test_the_api_description_has_control_routes_only_with_an_admin_key(locked, served):
    paths = ask(locked, "sk-root", "/openapi.json", "GET").json()["paths"]
    assert {"/admin/keys", "/admin/usage", "/reset_prefix_cache"} <= set(paths)
    paths = httpx.get(f"{served.url}/openapi.json").json()["paths"]
    assert not [path for path in paths if path.startswith("/admin") or "reset" in path]


def test_without_an_admin_key_there_are_no_control_routes(serve):
    served = serve(api_key=("sk-1",))
    for path in ("/admin/keys", "/admin/usage"):
        assert ask(served, "sk-1", path, "GET").status_code == 404
