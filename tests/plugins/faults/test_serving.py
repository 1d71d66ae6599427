"""A server with faults that files switch on: each fails its own request, and no other one."""

import time
from pathlib import Path

import pytest
from served_process import served_process

FAILING = (  # each fails requests with 500
    "request_received:raise",
    "request_received:exhaust",
    "sampler:raise",
    "sampler:corrupt",
    "sampler:exhaust",
    "attention.prepare:raise",
    "attention.forward:exhaust",
    "attention.forward:corrupt",
    "policy.order:raise",
    "policy.order:corrupt",
)
HARMLESS = (
    "request_finished:raise",
    "policy.admits:raise",
    "policy.began:raise",
    "policy.ended:raise",
    "sampler:delay",
)
GRAMMARS = {  # status of a request whose grammar fails
    "grammar.check:raise": 500,
    "grammar.compile:raise": 500,
    "grammar.compile:crash": 500,
    "grammar.compile:exhaust": 400,
    "grammar.accept:raise": 500,
    "grammar.mask:crash": 500,
    "grammar.mask:corrupt": 500,
}
PARTS = (
    "--samplers", "default", "faults", "--attention-backend", "faults",
    "--scheduling-policy", "faults",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def served(folder):
    durations = {"sampler:delay": ":1ms"}
    rules = [
        f"{rule}@{folder / rule.replace(':', '.')}{durations.get(rule, '')}"
        for rule in (*FAILING, *HARMLESS, *GRAMMARS)
    ]
    with served_process(folder / "log", *PARTS, faults=",".join(rules)) as running:
        yield running


@pytest.fixture
def switch(folder):
    """Switch a rule on; all are off after the test."""

    def on(rule):
        (folder / rule.replace(":", ".")).touch()

    yield on
    for rule in (*FAILING, *HARMLESS, *GRAMMARS):
        (folder / rule.replace(":", ".")).unlink(missing_ok=True)


def off(folder, rule):
    (folder / rule.replace(":", ".")).unlink()


@pytest.mark.parametrize("rule", FAILING)
def test_a_fault_fails_its_own_request(served, switch, folder, rule):
    text = served.complete().json()["choices"][0]["text"]
    switch(rule)
    failed = served.complete()
    off(folder, rule)
    assert failed.status_code == 500, failed.text
    assert failed.json()["error"]["code"] == "request_failed"
    assert "Traceback" not in failed.text
    assert served.complete().json()["choices"][0]["text"] == text
    assert served.readiness() == (200, {"status": "ready"})


@pytest.mark.parametrize("rule", HARMLESS)
def test_a_fault_beside_the_computation_fails_no_request(served, switch, rule):
    text = served.complete().json()["choices"][0]["text"]
    switch(rule)
    assert served.complete().json()["choices"][0]["text"] == text
    assert served.readiness() == (200, {"status": "ready"})


@pytest.mark.parametrize("rule", GRAMMARS)
def test_a_fault_in_a_grammar_fails_its_own_request(served, switch, folder, rule):
    def choose(*choices):
        constraint = {"choice": choices, "backend": "faults"}
        return served.complete(structured_outputs=constraint)

    switch(rule)
    failed = choose("red", rule)  # a choice of its own: others are compiled already
    off(folder, rule)
    assert failed.status_code == GRAMMARS[rule], failed.text
    assert choose("red", "green").json()["choices"][0]["text"] in ("red", "green")
    assert served.readiness() == (200, {"status": "ready"})


def test_the_log_says_what_is_injected(served, switch):
    switch("sampler:raise")
    served.complete()
    log = served.log.read_text()
    assert "the fault sampler:raise@" in log
    assert "if the engine runs with --samplers default faults" in log
    assert "RuntimeError: injected fault: sampler:raise@" in log


def test_a_step_that_fails_outside_of_every_part_ends_the_server(tmp_path):
    flags = ("--executor", "faults", "--engine-process")
    with served_process(tmp_path / "log", *flags, faults="step.execute:raise@3") as ending:
        failed = ending.complete()
        assert failed.status_code == 503
        assert failed.json()["error"]["code"] == "engine_dead"
        assert ending.wait() == 1


def test_steps_that_fail_for_ten_seconds_make_the_server_unready_until_one_succeeds(
    served, switch, folder
):
    switch("sampler:raise")
    deadline = time.monotonic() + 60
    while served.readiness()[0] == 200 and time.monotonic() < deadline:
        assert served.complete().status_code == 500
        time.sleep(0.5)
    status, body = served.readiness()
    assert (status, body["status"]) == (503, "failing")
    assert "sampler 'faults' of plugin quire_faults" in body["cause"]
    assert "Traceback" not in body["cause"]
    assert body["failures"] >= 5
    assert served.client.get("/health").status_code == 200, "a restart may not help"
    off(folder, "sampler:raise")
    assert served.complete().status_code == 200, "the server still takes requests"
    assert served.readiness() == (200, {"status": "ready"})
