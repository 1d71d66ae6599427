"""POST /reset_prefix_cache, which exists only with an admin key."""

import httpx
import pytest

from quire.messages import ResetPrefixCache

ADMIN = {"authorization": "Bearer open-sesame"}
KEY = {"authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def controlled(serve):
    return serve(admin_key=("open-sesame",))


def reset(served, **headers):
    return httpx.post(f"{served.url}/reset_prefix_cache", headers=headers)


def test_the_cache_is_reset_between_two_steps(controlled):
    controlled.core.controls.clear()
    response = reset(controlled, **ADMIN)
    assert (response.status_code, response.json()) == (200, {"status": "reset"})
    assert controlled.core.controls == [ResetPrefixCache()]


def test_without_an_admin_key_there_is_no_such_route(served, serve):
    assert reset(served).status_code == 404
    assert reset(served, **ADMIN).json()["error"]["code"] == "not_found"
    assert reset(serve(api_key=("sesame",)), **KEY).status_code == 404
    assert served.core.controls == []


def test_it_asks_for_the_admin_key_and_for_a_post(serve):
    locked = serve(api_key=("sesame",), admin_key=("open-sesame",))
    assert reset(locked).status_code == 401
    assert reset(locked, **KEY).status_code == 403
    assert locked.core.controls == []
    assert reset(locked, **ADMIN).status_code == 200
    get = httpx.get(f"{locked.url}/reset_prefix_cache", headers=ADMIN)
    assert get.status_code == 405


def test_a_server_without_keys_asks_for_the_admin_key(controlled):
    controlled.core.controls.clear()
    assert reset(controlled).status_code == 401
    assert reset(controlled, **KEY).status_code == 401
    assert controlled.core.controls == []


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_page_of_another_origin_cannot_reset_it(controlled, origin):
    controlled.core.controls.clear()
    assert reset(controlled, origin=origin, **ADMIN).status_code == 403
    assert controlled.core.controls == []
