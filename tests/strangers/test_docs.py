"""The first package of docs/plugins.md is extracted, built, installed and used."""

import re
from pathlib import Path

import pytest
from acme_parts import Quire
from wheel import build_and_install

README = Path(__file__).parents[2] / "README.md"
PAGE = README.parent / "docs" / "plugins.md"


@pytest.fixture(scope="module")
def margin(tmp_path_factory, acme_site):
    source = tmp_path_factory.mktemp("margin")
    for block in re.findall(r"```\w+\n(# [\w.]+\n.*?)```", PAGE.read_text(), re.DOTALL)[:2]:
        (source / block.splitlines()[0].removeprefix("# ")).write_text(block)
    return Quire(acme_site, build_and_install(source, source / "site"))


def example(page):
    block = re.search(r"```python\n# quire_margin.py\n(.*?)```", page.read_text(), re.DOTALL)[1]
    return [line for line in block.splitlines() if line.strip()]


def test_the_example_is_a_dozen_lines_and_the_same_in_the_readme():
    assert len(example(PAGE)) == 12
    assert example(README) == example(PAGE)


def test_the_package_of_the_page_works(margin, checkpoint, tmp_path):
    """Use one server, as on the page; `test_acme` tests fields on the command line."""
    assert margin.run("plugins", "doctor").returncode == 0
    with margin.serve(tmp_path / "log", checkpoint, "--samplers", "default,margin") as client:
        greedy, random, within = (
            _text(client, {"prompt": "What is quire?", "max_tokens": 16, "seed": 1} | more)
            for more in ({"temperature": 0}, {"temperature": 2}, {"temperature": 2, "margin": 0})
        )
    assert random != greedy
    assert within == greedy


def _text(client, body):
    response = client.post("/v1/completions", json=body)
    response.raise_for_status()
    return response.json()["choices"][0]["text"]
