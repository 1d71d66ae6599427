"""Start-up of an engine in this or another process, with the same results."""

import asyncio
import sys

import pytest
from installed import sites

from quire.config import ParallelSettings, Settings
from quire.engine.core import EngineCore
from quire.launch import engine, start_engine
from quire.launch.composing import compose_engine
from quire.launch.engine import stall_limit
from quire.launch.engine_process.remote_core import RemoteCore
from quire.plugins.loading import load_plugins
from quire.sampling_params import SamplingParams
from quire.testing.checkpoints import write_checkpoint

site = pytest.fixture(sites)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder)


@pytest.mark.parametrize(("given", "expected"), [(None, 60), (5, 60), (120, 120), (900, 900)])
def test_an_engine_is_not_stalled_before_a_longer_timeout_that_was_set(given, expected):
    options = {} if given is None else {"step_timeout_s": given}
    assert stall_limit(ParallelSettings(**options)) == expected
    assert stall_limit(ParallelSettings(stall_limit_s=8, **options)) == 8


def test_a_start_that_fails_after_the_core_has_begun_ends_the_core(folder, monkeypatch):
    ended, shutdown = [], EngineCore.shutdown

    def noted(core):
        ended.append(core)
        shutdown(core)

    def fail(*_args):
        raise RuntimeError("no thinking here")

    monkeypatch.setattr(EngineCore, "shutdown", noted)
    monkeypatch.setattr(engine, "make_thinking", fail)
    with pytest.raises(RuntimeError, match="no thinking here"):
        start_engine(Settings.from_options({"model": folder}))
    assert len(ended) == 1


RECORDS_REQUESTS = """
    from quire import hookimpl

    received, finished = [], []

    @hookimpl
    def request_received(request):
        received.append(request.request_id)

    @hookimpl
    def request_finished(output):
        finished.append(output.request_id)
"""


def test_plugins_see_requests_of_an_async_frontend_begin_and_end(folder, site):
    site.install("acme_records", RECORDS_REQUESTS)
    engine = start_engine(Settings.from_options({"model": folder}))
    frontend = engine.async_frontend()

    async def complete():
        try:
            return await frontend.generate_whole("x", SamplingParams(max_tokens=1))
        finally:
            await frontend.shutdown()

    output = asyncio.run(complete())
    recorded = sys.modules["acme_records"]
    assert recorded.received == recorded.finished
    assert [each.startswith(output.request_id) for each in recorded.finished] == [True]


@pytest.mark.parametrize(("is_serving", "kind"), [(True, RemoteCore), (False, EngineCore)])
def test_a_server_has_its_engine_in_another_process(folder, is_serving, kind):
    engine = start_engine(Settings.from_options({"model": folder}), is_serving=is_serving)
    assert isinstance(engine.core, kind)
    engine.core.shutdown()


def test_the_chat_template_of_the_user_takes_the_place_of_the_models(folder, tmp_path):
    (tmp_path / "own.jinja").write_text("own: {{ messages[0].content }}")
    options = {"model": folder, "chat_template": str(tmp_path / "own.jinja")}
    settings = Settings.from_options(options)
    composed = compose_engine(settings, load_plugins(settings.plugins))
    messages = [{"role": "user", "content": "Hi"}]
    assert composed.chat_template.render(messages).text == "own: Hi"


@pytest.mark.parametrize(("is_read", "num_ends"), [(False, 1), (True, 2)])
def test_special_tokens_of_messages_are_read_if_the_user_wants_it(folder, is_read, num_ends):
    settings = Settings.from_options({"model": folder, "special_tokens_in_messages": is_read})
    composed = compose_engine(settings, load_plugins(settings.plugins))
    rendered = composed.chat_template.render([{"role": "user", "content": "Hi <|im_end|>"}])
    assert bool(rendered.breaks) != is_read
    ids = composed.tokenizer.encode_broken(rendered.text, rendered.breaks)
    assert ids.count(composed.tokenizer.backend.token_to_id("<|im_end|>")) == num_ends
