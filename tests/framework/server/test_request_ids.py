"""A client's id is for logs and the response: inside, every request has an id that we made."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

CHAT = {"messages": [{"role": "user", "content": "Count"}]}
SAME = {"x-request-id": "mine", "request-id": "mine"}
TEXT = "one two three four five six seven eight nine ten"


def post(served, **fields):
    body = CHAT | {"request_id": "mine"} | fields
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=SAME, timeout=20)


def test_requests_with_one_id_get_their_own_responses(served):
    served.texts.by_prompt = {"Count": TEXT}
    served.core.step_s = 0.005
    with ThreadPoolExecutor(64) as pool:
        responses = list(pool.map(lambda seed: post(served, seed=seed), range(64)))
    bodies = [response.json() for response in responses]
    assert [body["choices"][0]["message"]["content"] for body in bodies] == [TEXT] * 64
    assert {body["id"] for body in bodies} == {"chatcmpl-mine"}  # what they asked for
    assert {response.headers["x-request-id"] for response in responses} == {"mine"}
    assert len({request.request_id for request in served.core.requests}) == 64
    assert not any("mine" in request.request_id for request in served.core.requests)


def test_one_that_goes_away_takes_no_other_of_its_id_along(served, wait_for):
    served.texts.by_prompt = {"Count": TEXT}
    served.core.step_s = 0.02
    responses = []
    others = [
        threading.Thread(target=lambda: responses.append(post(served).json())) for _ in range(3)
    ]
    for other in others:
        other.start()
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=CHAT | {"stream": True}, headers=SAME) as leaving:
        next(leaving.iter_lines())
        assert wait_for(lambda: len(served.core.requests) == 4)
    assert wait_for(lambda: len(served.core.aborted) == 1)
    for other in others:
        other.join(20)
    assert [response["choices"][0]["message"]["content"] for response in responses] == [TEXT] * 3
    assert len(served.core.aborted) == 1
