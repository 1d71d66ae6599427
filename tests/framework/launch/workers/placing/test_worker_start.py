"""Placement by the executor: every rank has a process, and what cannot start leaves none."""

import logging
import os

import placing_executors
import pytest
from processes import descendants, eventually

from quire.config import ServerSettings, Settings
from quire.errors import CapacityError, EngineDeadError, RefusedError
from quire.interfaces.executor import ExecutorCapabilities
from quire.launch.composing import compose_engine
from quire.launch.workers.placing import ports
from quire.launch.workers.placing.worker_start import start_workers
from quire.launch.workers.worker_wire import WorkerConfig
from quire.machine.node_identity import node_id
from quire.machine.pages import WEIGHT_PAGES
from quire.native.availability import native_unavailable_reason
from quire.plugins.loading import load_plugins
from quire.plugins.registry import Entry, Source
from quire.process.ipc import decode
from quire.testing.checkpoints import write_checkpoint
from quire.worker.parts import WorkerParts
from quire.worker.worker import ModelWorker

PLAIN = {"threads": 1, "enforce_eager": True, "kernels": "torch", "dtype": "float32"}
ANY = ExecutorCapabilities(max_tensor_parallel_size=None, max_pipeline_parallel_size=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM").folder)


@pytest.fixture
def composed(folder):
    """Compose an engine with quire's executors and those of `placing_executors`."""

    def make(executor, **options):
        plugins = load_plugins()
        kind = plugins.registries.executors.kind
        source = Source("tests", "tests", "1")
        for name in ("PlacesOne", "PlacesAll", "PlacesNone"):
            entry = Entry(kind, name, f"placing_executors:{name}", source, 2, ANY)
            plugins.registries.executors.accept([entry])
        options = PLAIN | {"model": folder, "executor": executor} | options
        return compose_engine(Settings.from_options(options), plugins)

    return make


def worker_processes():
    return [pid for pid, line in descendants(os.getpid()).items() if "worker_process" in line]


def has_ended(process):
    return process.process.poll() is not None and process.fileno() is None


def test_one_worker_in_this_process_needs_no_connection(composed):
    worker = start_workers(composed("in_process"))
    assert type(worker) is ModelWorker
    assert worker_processes() == []
    worker.shutdown()


class FailingError(Exception):
    """Raised in place of building the worker."""


@pytest.mark.skipif(native_unavailable_reason() is not None, reason="weights are not packed")
def test_memory_that_was_prepared_for_a_worker_is_released_if_it_cannot_be_built(
    composed, monkeypatch
):
    def fail(*_):
        assert WEIGHT_PAGES._memory is not None
        raise FailingError

    monkeypatch.setattr(WorkerParts, "load", fail)
    with pytest.raises(FailingError):
        start_workers(composed("in_process", kernels="native"))
    assert WEIGHT_PAGES._memory is None


def test_ranks_join_load_and_end_with_the_engine(composed):
    workers = start_workers(composed("processes", tensor_parallel_size=2))
    assert len(worker_processes()) >= 2
    places = workers._places
    assert {place.node_id for place in places} == {node_id()}, "they share memory"
    assert [(place.address, place.device) for place in places] == [
        ("127.0.0.1", 0),
        ("127.0.0.1", 1),
    ]
    assert len(workers.load().kv_bytes) == 2
    workers.check_health()
    workers.shutdown()
    eventually(lambda: worker_processes() == [])
    with pytest.raises(EngineDeadError, match="shut down"):
        workers.check_health()


def test_too_few_processes_are_refused_and_ended(composed):
    text = r"PlacesOne.* placed 1 workers, and 2 are needed"
    with pytest.raises(RefusedError, match=text):
        start_workers(composed("PlacesOne", tensor_parallel_size=2))
    assert has_ended(placing_executors.PlacesOne.placed.pop())


def test_processes_that_never_join_are_ended_and_named(composed):
    silent = composed("PlacesAll", tensor_parallel_size=2, worker_start_timeout_s=1)
    with pytest.raises(EngineDeadError, match=r"within 1 s: worker 0 of 2 .*; worker 1 of 2 "):
        start_workers(silent)
    assert [has_ended(process) for process in placing_executors.PlacesAll.placed] == [True] * 2
    placing_executors.PlacesAll.placed.clear()


def test_ctrl_c_while_the_ranks_start_ends_them(composed, monkeypatch):
    def interrupt(workers):
        raise KeyboardInterrupt

    monkeypatch.setattr(ports.WorkerSet, "join", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start_workers(composed("PlacesAll"))
    assert has_ended(placing_executors.PlacesAll.placed.pop())


def test_a_rank_is_given_its_config_without_the_servers_secrets(composed, monkeypatch):
    given = []
    monkeypatch.setattr(ports, "LocalProcess", lambda *arguments: given.append(arguments))
    with pytest.raises(CapacityError, match="no device is free"):
        start_workers(composed("PlacesNone", api_key=["secret"], pipeline_parallel_size=2))
    placing_executors.PlacesNone.launches.pop().spawn(1)
    [(arguments, config)] = given
    assert b"secret" not in config
    found = decode(config, WorkerConfig)
    folder = found.address.removeprefix("unix://").rpartition("/")[0]
    assert (arguments, found.rank) == ([str(os.getpid()), folder], 1)
    assert found.settings.server == ServerSettings()
    assert found.settings.parallel.pipeline_parallel_size == 2
    assert found.address.startswith("unix://")
    assert found.log_level == logging.getLogger("quire").getEffectiveLevel()
