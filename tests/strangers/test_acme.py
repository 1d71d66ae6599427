"""A third-party package: all its plugins are used by name, like the built-in ones."""

import json
import re
import subprocess
import sys

import pytest
from acme_reference import SIZES, acme_weights, greedy_tokens
from kernel_options import OWN_BACKEND

ENGINE_PARTS = {
    "models": "AcmeForCausalLM",
    "attention_backends": "acme_plain",
    "samplers": "acme_top_n_sigma",
    "scheduling_policies": "acme_shortest_first",
    "tool_parsers": "acme_calls",
}
PARTS = ENGINE_PARTS | {"routes": "acme_continue"}
FLAGS = (
    "--attention-backend", "acme_plain",
    "--samplers", "default", "acme_top_n_sigma",
    "--scheduling-policy", "acme_shortest_first",
    "--tool-call-parser", "acme_calls",
)  # fmt: skip
ROUTES = ("--routes", "acme_continue", "--api-key", "sk-acme")
PROMPT = "A stranger comes to town"
COUNT = 24
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


def byte_tokens(text, checkpoint):
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    return [vocabulary["Ġ" if letter == " " else letter] for letter in text]


@pytest.fixture(scope="module")
def expected(checkpoint):
    """The greedy completion of the prompt, computed without quire."""
    return greedy_tokens(acme_weights(), byte_tokens(PROMPT, checkpoint), COUNT)


@pytest.fixture(scope="module")
def server_log(tmp_path_factory):
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def server(acme, checkpoint, server_log):
    flags = ("--served-model-name", "tiny", *FLAGS, *ROUTES)
    with acme.serve(server_log, checkpoint, *flags) as client:
        client.headers["authorization"] = "Bearer sk-acme"
        yield client


def complete(server, **fields):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": COUNT, **fields}
    response = server.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_the_expected_completion_has_many_different_tokens(expected):
    assert len(set(expected)) >= 12
    assert max(expected) < SIZES["vocab_size"]


def test_the_plugin_is_listed_with_all_that_it_offers(acme):
    reports = json.loads(acme.run("plugins", "list", "--json").stdout)
    report = next(report for report in reports if report["name"] == "acme_quire")
    assert (report["state"], report["distribution"]) == ("loaded", "acme-quire")
    assert report["version"] == "1.2.0"
    assert {offer["kind"]: offer["name"] for offer in report["offers"]} == PARTS


def test_each_name_is_shown_with_its_capabilities(acme, acme_site):
    (shown,) = json.loads(acme.run("plugins", "show", "acme_top_n_sigma", "--json").stdout)["names"]
    assert shown["file"] == str(acme_site / "acme_quire" / "sampler.py")
    (field,) = shown["capabilities"]["fields"]
    assert (field["name"], field["type"], field["default"]) == ("top_n_sigma", "number", 0.0)


def test_the_doctor_finds_it_healthy(acme):
    done = acme.run("plugins", "doctor")
    assert done.returncode == 0, done.stdout
    assert "0 problems" in done.stdout


def test_it_is_found_by_its_metadata(acme, acme_site):
    assert (acme_site / "acme_quire-1.2.0.dist-info" / "entry_points.txt").is_file()
    assert acme.run("plugins", "show", "acme_quire", "-p", "no:acme_quire").returncode == 0
    blocked = acme.run("plugins", "show", "acme_calls", "-p", "no:acme-quire")
    assert blocked.returncode == 1
    assert "no offered name 'acme_calls'" in blocked.stderr


def test_its_parts_pass_the_kits_that_quire_ships(acme, acme_site):
    tests = acme_site.parent / "source" / "tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(
        command, cwd=tests, env=acme.environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"\b[1-9]\d+ passed", done.stdout)


def test_explain_lists_the_third_party_parts_with_reasons(acme, checkpoint):
    done = acme.run("explain", checkpoint, *FLAGS, "--json")
    parts = {part["kind"] + ":" + part["name"]: part for part in json.loads(done.stdout)["parts"]}
    for kind, name in ENGINE_PARTS.items():
        assert parts[f"{kind}:{name}"]["distribution"] == "acme-quire"
        assert parts[f"{kind}:{name}"]["version"] == "1.2.0"
    assert parts["models:AcmeForCausalLM"]["why"] == "named by the checkpoint"
    assert parts["attention_backends:acme_plain"]["why"] == "asked for"


def test_auto_finds_the_tool_parser_by_the_template_and_prefers_the_quicker_attention(
    acme, checkpoint
):
    out = acme.run("explain", checkpoint, "--json").stdout
    parts = {part["kind"]: part for part in json.loads(out)["parts"]}
    assert parts["tool_parsers"]["name"] == "acme_calls"
    assert parts["attention_backends"]["name"] == OWN_BACKEND
    rejected = {part["name"]: part["reason"] for part in parts["attention_backends"]["rejected"]}
    assert rejected["acme_plain"] == f"supported, but {OWN_BACKEND} has priority"
    assert rejected["triton_mla"].startswith("layout kv is not among mla")


def test_run_uses_all_four_parts(acme, checkpoint, expected, tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps([WEATHER]))
    call = r'\[\[call weather \{"city": "[a-z]{3}", "days": [1-9]\}\]\]'
    done = acme.run(
        "run", checkpoint, "Weather?", *FLAGS, "--tools", tmp_path / "tools.json",
        "--regex", call, "--max-tokens", 60, "--temperature", 2.0,
        "--field", "top_n_sigma=0.5", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (output,) = json.loads(done.stdout)["outputs"]
    (made,) = output["tool_calls"]
    assert made["name"] == "weather"
    assert set(json.loads(made["arguments"])) == {"city", "days"}
    assert output["text"] == ""


def test_run_gives_the_models_own_completion(acme, checkpoint, expected):
    done = acme.run(
        "run", checkpoint, PROMPT, "--raw", "--max-tokens", COUNT, "--temperature", 0, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"][0]["token_ids"] == expected


def test_the_server_gives_the_models_own_completion_with_third_party_attention(
    server, acme, checkpoint, expected
):
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = {number: token for token, number in vocabulary.items()}
    response = server.post("/detokenize", json={"model": "tiny", "tokens": expected})
    assert complete(server, temperature=0) == response.json()["prompt"]
    assert all(token in tokens for token in expected)


def test_a_third_party_request_field_is_read_from_the_body(server):
    greedy = complete(server, temperature=0)
    assert complete(server, temperature=2.0, seed=3) != greedy
    assert complete(server, temperature=2.0, seed=3, top_n_sigma=1e-6) == greedy


def test_requests_with_and_without_the_field_share_a_batch(server):
    fields = [{"temperature": 0}, {"temperature": 2.0, "seed": 3, "top_n_sigma": 1e-6}]
    alone = complete(server, temperature=2.0, seed=5)
    prompts = [PROMPT] * 3
    body = {"model": "tiny", "prompt": prompts, "max_tokens": COUNT, "temperature": 2.0, "seed": 5}
    together = [
        choice["text"] for choice in server.post("/v1/completions", json=body).json()["choices"]
    ]
    assert alone in together
    assert len({complete(server, **field) for field in fields}) == 1


@pytest.mark.parametrize("value", [-1, 101, "much", True])
def test_a_wrong_value_of_the_field_is_a_400_that_names_it(server, value):
    body = {"model": "tiny", "prompt": PROMPT, "top_n_sigma": value}
    response = server.post("/v1/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "top_n_sigma"
    assert "top_n_sigma must be a float from 0 to 100" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_third_party_parser_finds_a_forced_call(server, stream):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 0.7,
        "seed": 5,
        "max_tokens": 100,
        "stream": stream,
    }
    response = server.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    name, arguments = streamed_call(response) if stream else whole_call(response)
    assert name == "weather"
    assert set(json.loads(arguments)) == {"city", "days"}


def whole_call(response):
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    return call["function"]["name"], call["function"]["arguments"]


def streamed_call(response):
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    deltas = [
        choice["delta"] for e in events if e != "[DONE]" for choice in json.loads(e)["choices"]
    ]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or []]
    return calls[0]["name"], "".join(call.get("arguments") or "" for call in calls)


def test_the_server_lists_the_plugin(server):
    data = server.get("/v1/plugins").json()["data"]
    report = next(report for report in data if report["name"] == "acme_quire")
    assert {offer["kind"]: offer["name"] for offer in report["offers"]} == PARTS
    assert "file" not in report


CONTINUE = "/acme/continue"
CONTINUE_BODY = {"text": "Once upon", "seeds": [1, 2], "max_tokens": 12}


def test_a_third_party_route_generates_as_the_engine_does(server):
    response = server.post(CONTINUE, json=CONTINUE_BODY)
    assert response.status_code == 200, response.text
    found = response.json()
    texts = {each["seed"]: each["text"] for each in found["continuations"]}
    for seed, text in texts.items():
        fields = {"prompt": "Once upon", "max_tokens": 12, "temperature": 1.5, "seed": seed}
        assert complete(server, **fields) == text
    assert texts[1] != texts[2]
    assert found["num_tokens"] == 24


def test_a_third_party_route_streams_the_same_texts(server):
    whole = server.post(CONTINUE, json=CONTINUE_BODY).json()["continuations"]
    response = server.post(CONTINUE, json=CONTINUE_BODY | {"stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    texts = {1: "", 2: ""}
    for event in map(json.loads, events):
        texts[event["seed"]] += event["text"]
    assert len(events) > 4
    assert texts == {each["seed"]: each["text"] for each in whole}


def test_a_third_party_route_asks_for_the_key(server):
    refused = server.post(CONTINUE, json=CONTINUE_BODY, headers={"authorization": "Bearer wrong"})
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"text": "  "}, "text", "text is empty"),
        ({"seeds": []}, "seeds", "length >= 1"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be a whole number from 1"),
        ({"streem": True}, "streem", "did you mean 'stream'?"),
        ({"text": "x" * 5000}, None, "tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_a_third_party_route_have_the_shape_of_all(server, stream, fields, param, words):
    refused = server.post(CONTINUE, json=CONTINUE_BODY | {"stream": stream} | fields)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert words in error["message"]
    if param is not None:
        assert error["param"] == param


def test_a_third_party_route_is_described_measured_and_logged(server):
    document = server.get("/openapi.json").json()
    operation = document["paths"][CONTINUE]["post"]
    assert operation["summary"] == "Continue a text with each of several seeds."
    sent = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = document["components"]["schemas"][sent.rpartition("/")[2]]
    assert body["additionalProperties"] is False
    assert set(body["properties"]) == {"text", "seeds", "max_tokens", "stream"}
    assert "text/event-stream" in operation["responses"]["200"]["content"]
    server.post(CONTINUE, json=CONTINUE_BODY)
    assert f'route="{CONTINUE}"' in server.get("/metrics").text


def test_an_installed_route_that_is_not_named_is_not_served(acme, checkpoint, tmp_path):
    with acme.serve(tmp_path / "log", checkpoint) as client:
        assert client.post(CONTINUE, json=CONTINUE_BODY).status_code == 404
        assert CONTINUE not in client.get("/openapi.json").json()["paths"]


def test_a_route_that_no_plugin_offers_stops_the_start(acme, checkpoint):
    done = acme.run("serve", checkpoint, "--port", "0", "--routes", "acme_contineu")
    assert done.returncode == 1
    assert "unknown HTTP route 'acme_contineu'; did you mean 'acme_continue'?" in done.stderr
