"""Start-up of a core as set; a failed start-up leaves no worker behind."""

import pytest
from engine_parts import CountingExecutor

from quire.config import Settings
from quire.errors import CapacityError, SettingsError
from quire.launch import core_startup as core
from quire.launch.composing import compose_engine
from quire.messages import WorkerInfo
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint


class Started(CountingExecutor):
    """Workers that are started, but load nothing."""

    kv_bytes = (10**7,)
    is_asynchronous = False

    def __init__(self):
        super().__init__()
        self.events = []

    def load(self):
        self.events.append("load")
        return WorkerInfo(
            kv_bytes=list(self.kv_bytes),
            is_asynchronous=self.is_asynchronous,
        )

    def allocate(self, plans):
        self.events.append(plans[0].max_model_len)
        return self

    def shutdown(self):
        self.events.append("shutdown")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM").folder)


@pytest.fixture
def executor(monkeypatch):
    made = Started()

    def start(_):
        made.events.append("start")
        return made

    monkeypatch.setattr(core, "start_workers", start)
    return made


def composed(folder, **options):
    settings = Settings.from_options({"model": folder} | options)
    return compose_engine(settings, load_plugins(settings.plugins))


def test_the_cache_is_allocated_and_its_length_is_returned(folder, executor):
    _, started = core.start_core(composed(folder, num_kv_blocks=5))
    assert started.max_model_len == 4 * 16 + 1
    assert executor.events == ["start", "load", 65]


def test_code_is_known_to_be_imported_before_anything_is_loaded(folder, executor):
    core.start_core(composed(folder), before_load=lambda: executor.events.append("imported"))
    assert executor.events[:3] == ["start", "imported", "load"]


@pytest.mark.parametrize("broken", ["load", "allocate"])
def test_a_core_that_cannot_start_shuts_its_workers_down(folder, executor, monkeypatch, broken):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(executor, broken, fail)
    with pytest.raises(KeyboardInterrupt):
        core.start_core(composed(folder))
    assert executor.events[-1] == "shutdown"


def test_a_cache_that_is_too_small_shuts_the_workers_down(folder, executor):
    with pytest.raises(CapacityError, match="max_model_len"):
        core.start_core(composed(folder, num_kv_blocks=3, max_model_len=100))
    assert executor.events == ["start", "load", "shutdown"]


@pytest.mark.parametrize(
    ("asked", "is_asynchronous", "num_in_flight"),
    [(None, False, 0), (None, True, 1), (True, False, 1), (False, True, 0)],
)
def test_async_scheduling_follows_the_option_or_the_device(
    folder, executor, asked, is_asynchronous, num_in_flight
):
    executor.is_asynchronous = is_asynchronous
    made, _ = core.start_core(composed(folder, async_scheduling=asked))
    assert made._max_in_flight == num_in_flight


@pytest.mark.parametrize("enabled", [True, False])
def test_the_scheduler_has_the_users_limits(folder, executor, enabled):
    options = {"enable_prefix_caching": enabled, "max_num_batched_tokens": 77, "max_loras": 3}
    made, _ = core.start_core(composed(folder, **options))
    assert made.scheduler.kv.has_cache is enabled
    assert made.scheduler.transfers is None
    assert made.scheduler._running._max_adapters == 3
    assert made.scheduler.settings.max_num_batched_tokens == 77


def test_a_kv_store_that_is_asked_for_is_used(folder, executor):
    made, _ = core.start_core(composed(folder, kv_store="host_memory"))
    assert made.scheduler.transfers is not None
    made.shutdown()


def test_an_option_of_a_store_is_refused_before_the_workers_start(folder, executor):
    wrong = composed(folder, kv_store="host_memory", kv_store_options=["colour=red"])
    with pytest.raises(SettingsError, match="colour"):
        core.start_core(wrong)
    assert executor.events == []
