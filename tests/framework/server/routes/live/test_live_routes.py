"""GET /v1/engine and its stream: load, rates and KV blocks, without any name of a request."""

import json
import threading
import time
from array import array

import httpx
import pytest

from quire.messages import BlockMap

KEY = {"authorization": "Bearer sesame"}
CODES = array("H", [0, 2, 2, 8, 8, 9, 3])


@pytest.fixture
def mapped(served):
    served.core.block_maps = [BlockMap(0, 7, 1, CODES.tobytes())]
    yield served
    served.core.block_maps = []


def engine(served, **headers):
    response = httpx.get(f"{served.url}/v1/engine", headers=headers, timeout=20)
    assert response.status_code == 200, response.text
    return response.json()


def follow(served, count, **headers):
    """Return the first events of the stream."""
    found = []
    url = f"{served.url}/v1/engine/stream"
    with httpx.stream("GET", url, headers=headers, timeout=20) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {len(found)} events")


def test_an_idle_engine_has_no_load(serve):
    found = engine(serve())
    assert (found["object"], found["state"]) == ("engine", "ready")
    assert (found["num_running"], found["num_waiting"]) == (0, 0)
    assert found["computed_tokens_per_s"] is None, "there is nothing to compare with yet"
    assert found["draft_acceptance_rate"] is None
    (replica,) = found["replicas"]
    assert (replica["index"], replica["is_up"], replica["block_map"]) == (0, True, None)


def test_the_map_is_made_of_runs(mapped, wait_for):
    def block_map():
        return engine(mapped)["replicas"][0]["block_map"]

    assert wait_for(lambda: block_map() is not None)
    found = block_map()
    assert found["runs"] == [0, 1, 2, 2, 8, 2, 9, 1, 3, 1]
    assert (found["num_blocks"], found["blocks_per_cell"]) == (7, 1)
    assert 0 <= found["age_s"] < 20


def test_the_stream_shows_a_request_while_it_runs(mapped):
    mapped.core.step_s = 0.02
    body = {"prompt": "x", "max_tokens": 120, "ignore_eos": True}
    url = f"{mapped.url}/v1/completions"
    client = threading.Thread(target=lambda: httpx.post(url, json=body, timeout=30))
    client.start()
    try:
        found = follow(mapped, 5)
    finally:
        client.join()
    assert any(each["num_running"] == 1 for each in found)
    assert any(each["generated_tokens_per_s"] for each in found)
    times = [each["time"] for each in found]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_no_request_has_a_name_in_a_view(mapped):
    body = {"prompt": "a secret", "max_tokens": 2, "user": "a user", "request_id": "my-own-id"}
    httpx.post(f"{mapped.url}/v1/completions", json=body, timeout=20)
    text = json.dumps(follow(mapped, 2))
    assert not any(word in text for word in ("secret", "a user", "my-own-id", "cmpl-"))


def test_viewers_share_what_the_engine_is_asked_for(mapped):
    mapped.core.controls.clear()
    viewers = [threading.Thread(target=follow, args=(mapped, 3)) for _ in range(8)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    assert 2 <= len(mapped.core.controls) <= 8, "one map for all viewers of an interval"


def test_nothing_is_asked_for_while_nobody_looks(mapped, wait_for):
    follow(mapped, 1)
    assert wait_for(lambda: bool(mapped.core.controls))
    time.sleep(1.5)  # for the server to notice that the viewer is gone
    mapped.core.controls.clear()
    assert not wait_for(lambda: bool(mapped.core.controls), timeout_s=1.5)


def test_a_long_step_delays_the_map_only(mapped):
    mapped.core.step_s = 3.0
    body = {"prompt": "x", "max_tokens": 1}
    url = f"{mapped.url}/v1/completions"
    client = threading.Thread(target=lambda: httpx.post(url, json=body, timeout=30))
    client.start()
    try:
        found = follow(mapped, 4)
    finally:
        mapped.core.step_s = 0.0
        client.join()
    assert found[-1]["time"] - found[0]["time"] < 3.0


def test_both_routes_need_the_key(serve):
    locked = serve(api_key=("sesame",))
    for path in ("/v1/engine", "/v1/engine/stream"):
        assert httpx.get(locked.url + path).status_code == 401
    assert engine(locked, **KEY)["state"] == "ready"
    assert len(follow(locked, 1, **KEY)) == 1
