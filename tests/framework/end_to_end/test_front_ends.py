"""Servers with several front ends: one engine, one port, one set of limits, and no orphans."""

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from front_ends import engine_of, front_ends, metric, num_sockets, pieces_of, text_of
from processes import descendants, eventually, is_running
from served_process import served_process

COUNT = ("--api-server-count", "3")
SLOW = ("--executor", "faults")
DELAY = "step.execute:delay@*:5ms"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text(
        "keys:\n"
        "- {name: few, key: sk-few, requests-per-minute: 7}\n"
        "- {name: one, key: sk-one, max-concurrent: 1}\n"
        "- {name: free, key: sk-free}\n"
    )
    keys.chmod(0o600)
    admin = keys.with_name("admin")
    admin.write_text("sk-admin\n")
    admin.chmod(0o600)
    flags = (*COUNT, *SLOW, "--api-key-file", keys, "--admin-key-file", admin, "--open-metrics")
    log = keys.with_name("log")
    with served_process(log, *flags, faults=DELAY) as made:
        yield made


@pytest.fixture
def background():
    with ThreadPoolExecutor(16) as pool:
        yield pool


def as_key(name):
    return {"authorization": f"Bearer sk-{name}"}


def complete(served, key, **fields):
    """Return the response of a completion over a connection of its own."""
    body = {"prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": True} | fields
    url = f"{served.client.base_url}/v1/completions"
    return httpx.post(url, json=body, headers=as_key(key), timeout=120)


def test_all_front_ends_answer_as_one_does_and_get_their_connections(served, background):
    assert len(front_ends(served)) == 3
    prompts = [f"Once {letter}" for letter in "abcdefghijkl"]
    asked = [background.submit(complete, served, "free", prompt=p, max_tokens=60) for p in prompts]
    eventually(
        lambda: all(each.done() for each in asked) or min(map(num_sockets, front_ends(served))) > 5
    )
    together = [each.result().json()["choices"][0]["text"] for each in asked]
    alone = [complete(served, "free", prompt=prompt, max_tokens=60) for prompt in prompts]
    assert together == [each.json()["choices"][0]["text"] for each in alone]


def test_a_limit_of_requests_holds_for_all_front_ends_together(served, background):
    statuses = [background.submit(complete, served, "few") for _ in range(16)]
    found = sorted(each.result().status_code for each in statuses)
    assert found == [200] * 7 + [429] * 9
    usage = httpx.get(f"{served.client.base_url}/admin/usage", headers=as_key("admin")).json()
    (few,) = [each["usage"] for each in usage["data"] if each["name"] == "few"]
    assert (few["num_requests"], few["num_refused"]) == (7, 9)
    assert few["num_completion_tokens"] == 7 * 4
    assert metric(served, "quire_key_requests_total") >= 7


def test_a_limit_of_requests_at_the_same_time_holds_for_all_front_ends_together(served, background):
    long = [background.submit(complete, served, "one", max_tokens=200) for _ in range(6)]
    assert sorted(each.result().status_code for each in long) == [200] + [429] * 5
    assert complete(served, "one").status_code == 200


def test_any_front_end_shows_the_metrics_of_all(served, background):
    def completed():
        return metric(served, "quire_requests_completed_total")

    eventually(lambda: metric(served, "quire_kv_blocks_used") == 0)
    before, steps = completed(), metric(served, "quire_step_requests_sum")
    asked = [background.submit(complete, served, "free", max_tokens=5) for _ in range(12)]
    assert {each.result().status_code for each in asked} == {200}
    assert {completed() - before for _ in range(6)} == {12}
    eventually(lambda: metric(served, "quire_step_requests_sum") - steps == 12 * 5)
    eventually(lambda: metric(served, "quire_kv_blocks_used") == 0)
    assert metric(served, "quire_kv_blocks") == metric(served, "quire_kv_blocks") > 0


def test_a_reset_through_one_front_end_is_one_of_the_engine(served):
    url = f"{served.client.base_url}/reset_prefix_cache"
    assert httpx.post(url, headers=as_key("admin"), timeout=60).status_code == 200


def test_no_key_is_in_an_environment_or_a_command_line(served):
    for pid in [*front_ends(served), engine_of(served)]:
        for name in ("environ", "cmdline"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                assert b"sk-" not in file.read()


def test_the_health_port_answers_for_all_front_ends(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--api-server-count", "2", "--health-port", port, "--open-metrics")
    with served_process(tmp_path / "log", *flags) as served:

        def get(path):
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=60)

        eventually(lambda: get("/readyz").status_code == 200)
        before = metric(served, "quire_requests_completed_total")
        assert [complete(served, "none").status_code for _ in range(4)] == [200] * 4
        found = [line for line in get("/metrics").text.splitlines() if not line.startswith("#")]
        name = "quire_requests_completed_total"
        total = sum(float(line.split()[-1]) for line in found if line.startswith(name))
        assert total - before == 4
        assert get("/v1/models").status_code == 404
        stopped = front_ends(served)[0]
        os.kill(stopped, signal.SIGSTOP)
        eventually(lambda: get("/health").status_code == 503)
        assert get("/health").json() == {"status": "blocked"}
        assert get("/readyz").status_code == 503
        os.kill(stopped, signal.SIGCONT)
        eventually(lambda: get("/health").status_code == 200)


class TestDeaths:
    """Deaths of the processes of a server, while it streams."""

    @pytest.fixture
    def streaming(self, tmp_path, background):
        """A server with streams on all front ends, and what the streams return."""
        with served_process(tmp_path / "log", *COUNT, *SLOW, faults=DELAY) as served:
            began = [threading.Event() for _ in range(9)]

            def read(event):
                pieces = []
                try:
                    for piece in pieces_of(served):
                        pieces.append(piece)
                        event.set()
                except httpx.TransportError:
                    return "broken"
                return "".join(pieces)

            streams = [background.submit(read, each) for each in began]
            assert all(each.wait(60) for each in began)
            yield served, streams

    def test_a_front_end_that_is_killed_takes_its_own_requests_and_comes_back(self, streaming):
        served, streams = streaming
        before = front_ends(served)
        victim = max(before, key=num_sockets)
        os.kill(victim, signal.SIGKILL)
        texts = [each.result() for each in streams]
        assert "broken" in texts
        whole = [text for text in texts if text != "broken"]
        assert whole
        assert whole == [text_of(served, 300)] * len(whole)
        eventually(lambda: metric(served, "quire_kv_blocks_used") == 0)
        eventually(lambda: len(front_ends(served)) == 3)
        assert set(before) - {victim} < set(front_ends(served))
        assert served.readiness()[0] == 200
        assert "front end" in served.log.read_text()
        assert metric(served, "quire_requests_completed_total") >= len(whole)

    def test_the_death_of_the_engine_ends_all_front_ends_with_its_error(self, streaming):
        served, streams = streaming
        pids = [served.process.pid, *descendants(served.process.pid)]
        os.kill(engine_of(served), signal.SIGKILL)
        assert all(each.result().endswith("engine_dead") for each in streams)
        assert served.wait() == 1
        eventually(lambda: not any(map(is_running, pids)))
        assert "was killed by SIGKILL" in served.log.read_text().splitlines()[-1]

    def test_the_death_of_the_server_leaves_no_process(self, streaming):
        served, streams = streaming
        pids = [served.process.pid, *descendants(served.process.pid)]
        served.process.kill()
        eventually(lambda: not any(map(is_running, pids)))
        ends = {each.result() for each in streams}  # who ends first is open
        errors = ("engine_dead", "aborted")
        assert all(end == "broken" or end.endswith(errors) for end in ends), ends

    def test_a_signal_lets_the_streams_of_all_front_ends_complete(self, streaming):
        served, streams = streaming
        pids = [served.process.pid, *descendants(served.process.pid)]
        served.process.send_signal(signal.SIGTERM)
        eventually(lambda: served.readiness()[0] == 503)
        assert text_of(served) == "shutting_down"
        texts = [each.result() for each in streams]
        assert len(set(texts)) == 1
        assert texts[0] not in ("broken", "")
        assert served.wait() == 0
        eventually(lambda: not any(map(is_running, pids)))

    def test_a_second_signal_aborts_them(self, streaming):
        served, streams = streaming
        for _ in range(2):
            served.process.send_signal(signal.SIGTERM)
            eventually(lambda: served.readiness()[0] == 503)
        assert served.wait() == 0
        assert all(each.result().endswith("aborted") for each in streams)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--no-engine-process",), "share an engine only if it has a process of its own"),
        (("--data-parallel-size", "2"), "cannot share several replicas"),
        (("--max-received-bytes", "16MiB"), "less than one body may have"),
    ],
)
def test_what_cannot_be_shared_is_refused_at_once(tmp_path, flags, why):
    with (
        pytest.raises(RuntimeError, match=why),
        served_process(tmp_path / "log", *COUNT, *flags),
    ):
        pass
