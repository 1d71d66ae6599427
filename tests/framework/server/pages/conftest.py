"""A headless browser for the pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Tab, browser, browser_path


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = browser_path()
    if path is None:
        pytest.skip("there is no Chromium in PATH or QUIRE_TEST_BROWSER")
    folder: Path = tmp_path_factory.mktemp("profile")
    with browser(path, folder) as running:
        yield running


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Tab]:
    """A page of its own; at the end its scripts have raised and its policy has refused nothing."""
    made = chromium.tab()
    made.resize(1280, 800)
    yield made
    made.js("1")
    refused = [each for each in made.complaints if "status of" not in each]
    assert refused == []
