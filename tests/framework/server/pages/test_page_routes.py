"""/ui and /docs: one round trip each, nothing from elsewhere, no data, and no key."""

import base64
import hashlib
import re

import httpx
import pytest
from asgi_parts import get

from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.http.entry_checks import PAGE_PATHS
from quire.server.pages.page_routes import page_operations

PATHS = ("/docs", "/ui")
MAX_BYTES = 60_000
KEY = "sk-canary"


@pytest.fixture(params=PATHS)
def page(request, frontend):
    return get(create_app(frontend, ServerSettings(api_key=(KEY,)), list), request.param)


def inner(page, tag):
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page.body.decode(), re.DOTALL)
    assert len(found) == 1, f"one inline {tag}"
    return found[0]


def rules(page):
    parts = [rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; ")]
    return dict(parts)


def hash_of(text):
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def test_a_page_needs_no_key_and_is_html(page):
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.body.startswith(b"<!doctype html>")


def test_a_page_is_small(page):
    assert len(page.body) < MAX_BYTES


def test_only_its_own_script_and_style_may_run(page):
    found = rules(page)
    assert found.pop("script-src") == hash_of(inner(page, "script"))
    assert found.pop("style-src") == hash_of(inner(page, "style"))
    assert found == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"


def test_nothing_comes_from_elsewhere(page):
    text = page.body.decode()
    addresses = set(re.findall(r"https?://[^\s'\"<>]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a format, not an address"
    assert not re.search(r"@import|url\(", inner(page, "style"))
    assert not re.search(r"\b(src|srcset)=|\bimport\b", text.replace(inner(page, "style"), ""))
    markup = text.replace(inner(page, "script"), "")
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", markup), "no inline handlers"


def test_no_text_is_read_as_html(page):
    script = inner(page, "script")
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"):
        assert name not in script
    assert not re.search(r"\beval\(|new Function|srcdoc", script)


def test_a_key_is_kept_in_the_tab_only(page):
    script = inner(page, "script")
    assert "sessionStorage" in script
    assert "localStorage" not in script
    assert "document.cookie" not in script


def test_a_page_has_no_data_of_the_server(page, frontend):
    text = page.body.decode()
    assert KEY not in text
    assert f'"{frontend.model_name}"' not in text


def test_the_open_paths_are_those_of_the_pages():
    assert {operation.path for operation in page_operations()} == PAGE_PATHS == set(PATHS)


@pytest.mark.parametrize("path", [*PATHS, "/ui/", "/docs/x"])
def test_without_pages_their_paths_ask_for_the_key_and_are_not_found(frontend, path):
    locked = create_app(frontend, ServerSettings(ui=False, api_key=(KEY,)), list)
    assert get(locked, path).status == 401
    assert get(create_app(frontend, ServerSettings(ui=False), list), path).status == 404


@pytest.mark.parametrize("path", ["/ui/", "/UI", "/%75i", "/docs/", "//docs", "/ui;"])
def test_other_spellings_ask_for_the_key(serve, path):
    locked = serve(api_key=(KEY,))
    assert httpx.get(locked.url + path).status_code == 401


def test_a_page_answers_nothing_but_get(serve):
    locked = serve(api_key=(KEY,))
    assert httpx.post(f"{locked.url}/ui").status_code == 405
    assert httpx.head(f"{locked.url}/ui").status_code == 200
