"""Every Python snippet in README and docs runs as it stands, in order, each page in one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
GENERATOR = re.compile(r"<!-- \[\[\[cog.*?\]\]\] -->", re.DOTALL)
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
PAGES = [ROOT / "README.md", ROOT / "framework" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
# A page of plugin code is tested where it is explained: tests/strangers, tests/framework/testing.
ELSEWHERE = {"docs/plugins.md", *(f"docs/plugins/{p.name}" for p in ROOT.glob("docs/plugins/*.md"))}


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


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(CODE.sub("", GENERATOR.sub("", page.read_text()))):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if name(page) not in ELSEWHERE | {"docs/server.md"} and snippets(page)],
    ids=name,
)
def test_snippets_run(page):
    code = snippets(page)
    if name(page) == "README.md":
        code = code.split("from quire import hookimpl")[0]  # the plugin has a test of its own
        assert "LLM inference and serving engine" in run(code)
    else:
        run(code)


def test_snippets_of_the_server_page_run_against_a_server():
    command = [sys.executable, "-m", "quire.cli", "serve", "demo", "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        url = server.stdout.readline().split()[-1]
        assert url.startswith("http://127.0.0.1:")
        page = ROOT / "docs" / "server.md"
        run(f"base_url = {url + '/v1'!r}\n" + snippets(page))
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
