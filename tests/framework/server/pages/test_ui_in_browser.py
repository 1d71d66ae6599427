"""What a user of /ui sees and does, in headless Chromium, over an engine that plays a script."""

import httpx
import pytest

from quire.errors import RequestFailedError
from quire.messages import ErrorReport

pytestmark = pytest.mark.slow

LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)"
IS_DONE = f"document.querySelector('#send').textContent === 'Send' && !!{LAST}"
ENTER = ("Enter", 13)


def text_of(tab, part=".markdown"):
    return tab.js(f"{LAST}.querySelector('{part}').innerText")


def open_ui(tab, served):
    tab.open(f"{served.url}/ui")
    tab.wait("document.querySelector('#model').options.length > 0")


def say(tab, text):
    tab.fill("#prompt", text)
    tab.press(*ENTER)


def ask(tab, text):
    """Send a message, and return the text of the completion."""
    say(tab, text)
    tab.wait(IS_DONE)
    return text_of(tab)


@pytest.fixture
def scripted(served, tab):
    open_ui(tab, served)
    return served


def test_a_completion_grows_and_ends_with_its_figures(scripted, tab):
    scripted.texts.by_prompt = {"Hi": "One two three four five six seven eight nine ten."}
    scripted.core.step_s = 0.1
    say(tab, "Hi")
    early = tab.wait(f"{LAST} && {LAST}.querySelector('.markdown').innerText")
    tab.wait(IS_DONE)
    assert len(early) < len(text_of(tab))
    assert text_of(tab) == "One two three four five six seven eight nine ten."
    assert "completion tokens" in text_of(tab, ".figures")
    assert "tokens/s" in text_of(tab, ".figures")


@pytest.mark.parametrize(
    "hostile",
    [
        "<img src=x onerror=\"document.title='owned'\">",
        "<script>document.title='owned'</script>",
        "```html\n<iframe srcdoc='<script>parent.document.title=1</script>'></iframe>\n```",
        "**<b onclick=x>** [a](javascript:alert(1)) # <svg onload=x>",
    ],
)
def test_text_of_a_model_is_only_text(scripted, tab, hostile):
    scripted.texts.by_prompt = {"Hi": hostile}
    ask(tab, "Hi")
    assert tab.js("document.title") == "quire"
    inside = f"{LAST}.querySelector('.markdown')"
    assert tab.js(f"{inside}.querySelectorAll('img,script,iframe,svg,a').length") == 0
    assert "<" in tab.js(f"{inside}.textContent")


def test_code_and_lists_are_formatted(scripted, tab):
    scripted.texts.by_prompt = {
        "Hi": "Two:\n\n- one\n- `two`\n\n```python\nx = 1\n```\nThen **bold**."
    }
    ask(tab, "Hi")
    found = tab.js(
        f"[...{LAST}.querySelectorAll('li, pre, .markdown strong')].map((each) => each.textContent)"
    )
    assert found == ["one", "two", "x = 1", "bold"]


def test_reasoning_is_folded(scripted, tab):
    scripted.texts.by_prompt = {"Hi": "<t>hm, hm</t>Yes."}
    assert ask(tab, "Hi") == "Yes."
    reasoning = f"{LAST}.querySelector('.reasoning')"
    assert tab.js(f"[{reasoning}.open, {reasoning}.lastChild.textContent]") == [False, "hm, hm"]


def test_a_tool_is_called_and_its_result_goes_back(scripted, tab):
    scripted.texts.by_prompt = {
        "weather": '[[get_weather {"city": "Paris"}]]',
        "sunny, 21 degrees": "It is sunny.",
    }
    tab.click("#example-tool")
    ask(tab, "The weather?")
    assert "get_weather" in text_of(tab, ".call")
    assert '"city": "Paris"' in text_of(tab, ".call pre")
    tab.click(".results button")
    assert "result" in tab.js("document.querySelector('#chat-notice').textContent")
    tab.fill(".call textarea", "sunny, 21 degrees")
    tab.click(".results button")
    tab.wait(f"{IS_DONE} && document.querySelectorAll('.message.assistant').length === 2")
    assert text_of(tab) == "It is sunny."


def test_a_completion_is_stopped_and_computed_again(scripted, tab, wait_for):
    scripted.texts.by_prompt = {"Hi": "one two three four five six " * 30}
    scripted.core.step_s = 0.05
    say(tab, "Hi")
    tab.wait(f"{LAST} && {LAST}.querySelector('.markdown').innerText")
    tab.click("#send")
    tab.wait(IS_DONE)
    assert "stopped" in text_of(tab, ".who")
    assert wait_for(lambda: len(scripted.core.aborted) == 1)
    scripted.core.step_s = 0.0
    scripted.texts.by_prompt = {"Hi": "Short."}
    tab.click(".message.assistant .actions button:nth-child(2)")
    tab.wait(f"{IS_DONE} && {LAST}.innerText.includes('Short.')")
    assert tab.js("document.querySelectorAll('.message').length") == 2


def test_a_message_is_edited(scripted, tab):
    scripted.texts.by_prompt = {"Hi": "Hello.", "Bye": "Goodbye."}
    assert ask(tab, "Hi") == "Hello."
    tab.js("document.querySelector('.message.user .actions button').click()")
    tab.fill(".message.user textarea", "Bye")
    tab.click(".message.user form .primary")
    tab.wait(f"{IS_DONE} && {LAST}.innerText.includes('Goodbye.')")
    assert tab.js("document.querySelectorAll('.message').length") == 2


def test_settings_are_fields_of_the_request(scripted, tab):
    fields = {"#temperature": "0.5", "#top_p": "0.9", "#max_tokens": "3", "#seed": "7"}
    for selector, value in fields.items():
        tab.fill(selector, value)
    ask(tab, "Hi")
    request = scripted.core.requests[-1]
    assert (request.params.temperature, request.params.extra_args.get("top_p", 0.9)) == (0.5, 0.9)
    assert (request.max_tokens, request.seed) == (3, 7)
    assert "limit of tokens" in tab.js("document.querySelector('#chat-notice').textContent")


def test_an_adapter_is_chosen(scripted, tab):
    tab.fill("#model", "pirate")
    ask(tab, "Hi")
    assert scripted.core.requests[-1].adapter.name == "pirate"
    assert text_of(tab, ".who strong") == "pirate"


def test_settings_that_cannot_be_read_are_named(scripted, tab):
    tab.fill("#tools", "[{")
    say(tab, "Hi")
    tab.wait("document.querySelector('#settings-error').textContent.includes('not valid JSON')")
    assert scripted.core.requests == []


def test_a_stream_that_fails_keeps_what_has_arrived(scripted, tab):
    report = ErrorReport(RequestFailedError.code, "the sampler broke")
    scripted.texts.by_prompt = {"Hi": ("Half of a", report)}
    say(tab, "Hi")
    tab.wait("document.querySelector('#chat-notice .notice')")
    assert text_of(tab) == "Half of a"
    scripted.texts.by_prompt = {"Hi": "All of it."}
    tab.click("#chat-notice button")
    tab.wait(f"{IS_DONE} && {LAST}.innerText.includes('All of it.')")


def test_a_full_queue_says_when_to_try_again(scripted, tab):
    scripted.core.max_num_seqs, scripted.core.max_queued = 0, 0
    say(tab, "Hi")
    button = "document.querySelector('#chat-notice button')"
    tab.wait(f"{button} && {button}.textContent.includes('Try again in')")
    assert tab.js(f"{button}.disabled")
    scripted.core.max_num_seqs, scripted.core.max_queued = 1000, 1000
    tab.wait(f"!{button}.disabled")
    tab.js(f"{button}.click()")
    tab.wait(IS_DONE)
    assert tab.js("document.querySelectorAll('.message').length") == 2


def test_results_of_tools_are_still_there_when_they_are_sent_again(scripted, tab):
    scripted.texts.by_prompt = {
        "weather": '[[get_weather {"city": "Paris"}]]',
        "sunny, 21 degrees": "It is sunny.",
    }
    tab.click("#example-tool")
    ask(tab, "The weather?")
    tab.fill(".call textarea", "sunny, 21 degrees")
    scripted.core.max_num_seqs, scripted.core.max_queued = 0, 0
    tab.click(".results button")
    button = "document.querySelector('#chat-notice button')"
    tab.wait(f"{button} && {button}.textContent.includes('Try again in')")
    scripted.core.max_num_seqs, scripted.core.max_queued = 1000, 1000
    tab.wait(f"!{button}.disabled")
    tab.js(f"{button}.click()")
    tab.wait(f"{IS_DONE} && document.querySelectorAll('.message.assistant').length === 2")
    assert text_of(tab) == "It is sunny."


def test_a_server_with_a_key_asks_for_it(serve, tab):
    locked = serve(api_key=("sesame",))
    tab.open(f"{locked.url}/ui")
    tab.wait("document.querySelector('#key-dialog').open")
    tab.fill("#key-input", "wrong")
    tab.click("#key-dialog .primary")
    tab.wait("document.querySelector('#key-reason').textContent.includes('does not accept')")
    tab.fill("#key-input", "sesame")
    tab.click("#key-dialog .primary")
    tab.wait("document.querySelector('#model').options.length > 0")
    assert ask(tab, "Hi")
    assert tab.js("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
    tab.click("#tab-engine")
    tab.wait("document.querySelector('.replica')")


def test_the_tabs_work_by_keyboard(scripted, tab):
    tab.js("document.querySelector('#tab-chat').focus()")
    tab.press("ArrowRight", 39)
    tab.wait("!document.querySelector('#engine').hidden && document.querySelector('.replica')")
    assert tab.js("document.activeElement.id") == "tab-engine"
    assert tab.js("document.querySelector('#tab-engine').getAttribute('aria-selected')") == "true"
    tab.press("ArrowRight", 39)
    tab.wait("!document.querySelector('#chat').hidden")


@pytest.mark.parametrize("width", [320, 390, 820, 1280])
@pytest.mark.parametrize("path", ["/ui", "/ui#engine", "/docs"])
def test_no_page_is_wider_than_its_screen(served, tab, width, path):
    tab.resize(width, 700)
    tab.open(served.url + path)
    tab.wait("document.querySelector('.replica, .route, .empty')")
    assert tab.js("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_is_one_request_before_it_asks_for_data(served, tab):
    open_ui(tab, served)
    urls = tab.js("performance.getEntriesByType('resource').map((each) => each.name)")
    assert {url.removeprefix(served.url) for url in urls} <= {"/readyz", "/v1/models"}


def test_the_docs_show_and_try_a_route(served, tab):
    tab.open(f"{served.url}/docs")
    tab.wait("document.querySelectorAll('.route').length > 10")
    tab.fill("#filter", "top_p")
    shown = tab.js(
        "[...document.querySelectorAll('.route')].filter((each) => !each.hidden)"
        ".map((each) => each.querySelector('.path').textContent)"
    )
    assert "/v1/chat/completions" in shown
    assert "/tokenize" not in shown
    tab.fill("#filter", "/version")
    route = "[...document.querySelectorAll('.route')].find((each) => !each.hidden)"
    tab.js(f"{route}.open = true")
    tab.wait(f"{route}.querySelector('.try button')")
    tab.js(f"{route}.querySelector('.try button').click()")
    expected = httpx.get(f"{served.url}/version").json()["version"]
    tab.wait(f"{route}.querySelector('.try pre').textContent.includes('{expected}')")
    assert "200" in tab.js(f"{route}.querySelector('.try [role=status]').textContent")
