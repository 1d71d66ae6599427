"""The package that opens docs/plugins.md is taken from the page, built, installed and used."""

import json
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


def door(page):
    block = re.search(r"```python\n# quire_margin.py\n(.*?)```", page.read_text(), re.DOTALL)[1]
    return [line for line in block.splitlines() if line.strip()]


def test_the_door_is_a_dozen_lines_and_the_same_in_the_readme():
    assert len(door(PAGE)) == 12
    assert door(README) == door(PAGE)


def test_the_package_of_the_page_works(margin, checkpoint):
    assert margin.run("plugins", "doctor").returncode == 0
    argv = ("run", checkpoint, "What is quire?", "--samplers", "default", "margin", "--json")
    options = ("--max-tokens", 16, "--seed", 1)
    outputs = [
        json.loads(margin.run(*argv, *options, *more).stdout)["outputs"][0]["token_ids"]
        for more in (
            ("--temperature", 0),
            ("--temperature", 2.0),
            ("--temperature", 2.0, "--field", "margin=0"),
        )
    ]
    assert outputs[1] != outputs[0]
    assert outputs[2] == outputs[0]
