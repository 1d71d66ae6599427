"""POST /reset_prefix_cache, behind the same guard as every route."""

import httpx
import pytest

from quire.messages import ResetPrefixCache


def reset(served, **headers):
    return httpx.post(f"{served.url}/reset_prefix_cache", headers=headers)


def test_the_cache_is_reset_between_two_steps(served):
    response = reset(served)
    assert (response.status_code, response.json()) == (200, {"status": "reset"})
    assert served.core.controls == [ResetPrefixCache()]


def test_it_asks_for_the_key_and_for_a_post(serve):
    locked = serve(api_key="sesame")
    assert reset(locked).status_code == 401
    assert locked.core.controls == []
    assert reset(locked, authorization="Bearer sesame").status_code == 200
    get = httpx.get(f"{locked.url}/reset_prefix_cache", headers={"authorization": "Bearer sesame"})
    assert get.status_code == 405


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_page_of_another_origin_cannot_reset_it(served, origin):
    assert reset(served, origin=origin).status_code == 403
    assert served.core.controls == []
