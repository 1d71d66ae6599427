"""The page of metrics shows a key no other key's usage."""

import asyncio
import json

import pytest
from asgi_parts import JSON, Wire, call, scope_of
from prometheus_client.parser import text_string_to_metric_families

from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.keys.accounts import Accounts
from quire.server.keys.api_key import make_key
from quire.server.keys.key_ring import KeyRing

RING = KeyRing(
    (make_key("alice", "sk-alice"), make_key("alice2", "sk-other"), make_key("al", "sk-third")),
    (make_key("admin", "sk-admin"),),
)


def bearer(key):
    return {"authorization": f"Bearer {key}"} if key else {}


@pytest.fixture
def ask(frontend):
    def run(key=None, **settings):
        app = create_app(frontend, ServerSettings(**settings), list, accounts=Accounts(RING))
        body = json.dumps({"prompt": "a"}).encode()

        async def send():
            for each in ("sk-alice", "sk-other"):
                scope = scope_of("/v1/completions", headers=JSON | bearer(each))
                assert (await call(app, Wire(body), scope)).status == 200
            return await call(app, Wire(b""), scope_of("/metrics", "GET", bearer(key)))

        wire = asyncio.run(send())
        assert wire.status == 200
        return wire.body.decode()

    return run


def usage(text):
    return {
        sample.labels["key"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "quire_key_requests_total"
    }


def test_an_api_key_reads_its_own_usage(ask):
    text = ask("sk-alice")
    assert usage(text) == {"alice": 1}
    assert "alice2" not in text
    assert 'quire_http_requests_total{method="POST"' in text
    assert usage(ask("sk-third")) == {"al": 0}


def test_the_admin_key_and_open_metrics_show_that_of_all_keys(ask):
    everything = {"alice": 1, "alice2": 1, "al": 0}
    assert usage(ask("sk-admin")) == everything
    assert usage(ask(open_metrics=True)) == everything
