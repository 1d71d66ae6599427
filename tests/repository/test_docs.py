"""Every Python snippet in README and docs runs as it stands, in order, each page in one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tool_server_commands import raw_server

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
GENERATOR = re.compile(r"<!-- \[\[\[cog.*?\]\]\] -->", re.DOTALL)
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]*)(?:#([^)]*))?\)")
NAMED = re.compile(r"\bdocs/[\w/]+\.md")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "framework" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
# A page of plugin code is tested where it is explained: tests/strangers, tests/framework/testing.
ELSEWHERE = {"docs/plugins.md", *(f"docs/plugins/{p.name}" for p in ROOT.glob("docs/plugins/*.md"))}
# Their snippets need a server.
SERVER_PAGES = [ROOT / "docs" / "server.md", *sorted(ROOT.glob("docs/server/*.md"))]


def name(page):
    return page.relative_to(ROOT).as_posix()


def snippets(page):
    return "\n".join(SNIPPET.findall(page.read_text()))


def run(code, timeout=280):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(CODE.sub("", page.read_text()))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def links(text):
    """Return the target and the anchor of each link of a page that is no address."""
    return [found for found in LINK.findall(CODE.sub("", GENERATOR.sub("", text))) if any(found)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target, anchor in links(page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{name(page)} links to {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{name(page)} links to {target}#{anchor}"


def test_links_are_found_with_their_anchors():
    text = "[a](b.md) [c](b.md#d) [e](#f) [g](https://h.org/i#j)\n```\n[k](l.md)\n```\n"
    assert links(text) == [("b.md", ""), ("b.md", "d"), ("", "f")]


def test_every_page_is_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            waiting += [page.parent / target for target, _ in links(page.read_text()) if target]
    assert [name(page) for page in ROOT.glob("docs/**/*.md") if page.resolve() not in reached] == []


def test_pages_that_messages_of_the_product_name_exist():
    sources = [*ROOT.glob("framework/quire/**/*.py"), *ROOT.glob("plugins/*/quire_*/**/*.py")]
    named = {page for path in sources for page in NAMED.findall(path.read_text())}
    assert named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if name(page) not in ELSEWHERE and page not in SERVER_PAGES and snippets(page)
    ],
    ids=name,
)
def test_snippets_run(page):
    code = snippets(page)
    if name(page) == "README.md":
        code = code.split("from quire import hookimpl")[0]  # the plugin has a test of its own
        assert "LLM inference and serving engine" in run(code)
    else:
        run(code)


@pytest.fixture(scope="module")
def served_url():
    """The address of a server of the demo model."""
    command = [sys.executable, "-m", "quire.cli", "serve", "demo", "--port", "0"]
    command += ["--tool-server", f"weather={raw_server('weather')}"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        url = server.stdout.readline().split()[-1]
        assert url.startswith("http://127.0.0.1:")
        yield url
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()


@pytest.mark.parametrize("page", [page for page in SERVER_PAGES if snippets(page)], ids=name)
def test_snippets_of_the_server_pages_run_against_a_server(page, served_url):
    run(f"url = {served_url!r}\nbase_url = {served_url + '/v1'!r}\n{snippets(page)}")
