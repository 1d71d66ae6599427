"""/ui over the demo model in a process of its own; makes the pictures of docs/server/ui.md.

The pictures are written to the folder that QUIRE_PICTURES names, if there is one.
"""

import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
from served_process import served_process

pytestmark = pytest.mark.slow

LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)"
IS_DONE = f"document.querySelector('#send').textContent === 'Send' && !!{LAST}"
LEGEND = "document.querySelector('.legend')?.textContent ?? ''"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    log = tmp_path_factory.mktemp("served") / "log"
    with served_process(log, "--num-kv-blocks", 700) as served:
        yield served


@pytest.fixture
def pictures(tmp_path):
    return Path(os.environ.get("QUIRE_PICTURES", tmp_path))


def ask(tab, text):
    tab.fill("#prompt", text)
    tab.press("Enter", 13)
    tab.wait(IS_DONE)
    return tab.js(f"{LAST}.querySelector('.markdown').innerText")


def open_ui(tab, demo):
    tab.open(f"{str(demo.client.base_url).rstrip('/')}/ui")
    tab.wait("document.querySelector('#model').options.length > 0")


def set_format(tab, kind, text):
    tab.fill("#format", kind)
    tab.fill("#grammar", text)


def test_structured_output_follows_a_regex_and_a_schema(demo, tab):
    open_ui(tab, demo)
    set_format(tab, "regex", "[ab]{4}")
    assert re.fullmatch("[ab]{4}", ask(tab, "Four letters."))
    properties = {"ok": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["ok"]}
    set_format(tab, "json_schema", json.dumps(schema | {"additionalProperties": False}))
    ask(tab, "Is it so?")
    text = tab.js(f"{LAST}.querySelector('.markdown').textContent")
    assert isinstance(json.loads(text)["ok"], bool)


def test_the_block_map_shows_requests_while_they_run(demo, tab, pictures):
    open_ui(tab, demo)
    tab.click("#tab-engine")
    tab.wait(f"({LEGEND}).includes('held by 0 requests')")
    prompts = [f"{index} of six stories. " * (6 * index + 4) for index in range(6)]
    fields = {"max_tokens": 600, "ignore_eos": True}
    clients = [
        threading.Thread(target=demo.complete, args=(prompt,), kwargs=fields) for prompt in prompts
    ]
    for client in clients:
        client.start()
    try:
        tab.wait(f"({LEGEND}).includes('held by 6 requests')")
        tab.wait(
            "document.querySelectorAll('.figure .value')[2].textContent.startsWith('0') === false"
        )
        time.sleep(4.0)  # for lines of some length
        picture = pictures / "ui_engine.png"
        tab.resize(1160, 700)
        tab.picture(picture)
    finally:
        for client in clients:
            client.join()
    tab.wait(f"({LEGEND}).includes('held by 0 requests') && !({LEGEND}).includes(' 0 cached')")
    assert picture.stat().st_size < 200_000


def test_a_chat_looks_as_in_the_docs(demo, tab, pictures):
    tab.resize(1160, 700)
    open_ui(tab, demo)
    ask(tab, "What is quire?")
    tab.click("#example-tool")
    ask(tab, "What is the weather in Paris?")
    tab.wait(f"!!{LAST}.querySelector('.call')")
    picture = pictures / "ui_chat.png"
    tab.picture(picture)
    assert picture.stat().st_size < 200_000
