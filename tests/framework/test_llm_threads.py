"""One `LLM` in many threads, and an `LLM` whose engine fails; with and without its own process."""

import os
import signal
import threading
import time

import pytest
from installed import write_distribution
from processes import descendants, is_running

from quire import LLM, SamplingParams
from quire.errors import EngineDeadError
from quire.testing.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=7000, ignore_eos=True)
PATIENCE_S = 30
FRAGILE = """
    from quire import hookimpl
    from quire.interfaces.executor import ExecutorCapabilities
    from quire_executors.in_process import InProcessExecutor

    class Fragile(InProcessExecutor):
        num_steps = 0

        def place(self, launch):
            worker = super().place(launch)
            allocate = worker.allocate
            worker.allocate = lambda plans: self.fragile(allocate(plans))
            return worker

        def fragile(self, runner):
            execute = runner.execute

            def execute_twice(plan):
                self.num_steps += 1
                if self.num_steps == 3:
                    raise RuntimeError("out of smoke")
                execute(plan)

            runner.execute = execute_twice
            return runner

    @hookimpl
    def register_executors(registry):
        registry.add(
            "fragile",
            "fragile_plugin:Fragile",
            api=2,
            capabilities=ExecutorCapabilities(max_tensor_parallel_size=1),
        )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    return str(write_checkpoint(path, "Qwen3ForCausalLM", max_position_embeddings=8192).folder)


@pytest.fixture(params=[False, True], ids=["in_process", "process"])
def engine_process(request):
    return request.param


@pytest.fixture
def llm(folder, engine_process):
    with LLM(folder, engine_process=engine_process, max_num_seqs=8) as llm:
        yield llm


class Caller(threading.Thread):
    """Calls something in a thread of its own; keeps what it returned or raised."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call = call
        self.result = None
        self.start()

    def run(self):
        try:
            self.result = self.call()
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            self.result = error

    def outcome(self):
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.result


def texts(outputs):
    return [output.outputs[0].text for output in outputs]


def test_calls_of_several_threads_take_turns(llm):
    prompts = [[f"{name}{i}" for i in range(2)] for name in "abc"]
    expected = [texts(llm.generate(each, GREEDY)) for each in prompts]

    def ask(each):
        completions = []
        for _ in range(4):
            outputs = llm.generate(each, GREEDY)
            assert all(output.finished for output in outputs)
            completions.append(texts(outputs))
            llm.stats()
            llm.reset_prefix_cache()
        return completions

    callers = [Caller(lambda each=each: ask(each)) for each in prompts]
    assert [caller.outcome() for caller in callers] == [[one] * 4 for one in expected]
    assert llm.stats().num_used_blocks == 0


def test_a_close_ends_the_call_that_runs_and_those_that_wait(llm):
    callers = [Caller(lambda: llm.generate("x", LONG)) for _ in range(2)]
    time.sleep(0.2)
    began = time.monotonic()
    llm.close()
    for caller in callers:
        error = caller.outcome()
        assert isinstance(error, EngineDeadError), error
        assert "closed" in str(error)
    assert time.monotonic() - began < 5
    with pytest.raises(EngineDeadError, match="closed"):
        llm.stats()
    llm.close()


def test_a_step_that_raises_is_the_end_of_the_engine(folder, tmp_path, monkeypatch, engine_process):
    write_distribution(tmp_path, "fragile", {"fragile": "fragile_plugin"}, fragile_plugin=FRAGILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with LLM(folder, executor="fragile", engine_process=engine_process, max_num_seqs=2) as llm:
        for call in (
            lambda: llm.generate(["x", "y"], GREEDY),
            lambda: llm.generate("x", GREEDY),
            llm.reset_prefix_cache,
            llm.stats,
        ):
            with pytest.raises(EngineDeadError, match="RuntimeError: out of smoke"):
                call()


def test_close_does_not_wait_for_an_engine_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("quire.frontend.dispatch.shared_core.CLOSE_WAIT_S", 0.5)
    written = write_checkpoint(tmp_path, "Qwen3ForCausalLM", seed=1)
    llm = LLM(str(written.folder), engine_process=True, max_model_len=64)
    engine = next(pid for pid, line in descendants(os.getpid()).items() if "engine_process" in line)
    os.kill(engine, signal.SIGSTOP)
    ended = []

    def ask():
        with pytest.raises(EngineDeadError):
            llm.stats()
        ended.append(True)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    started = time.monotonic()
    llm.close()
    asking.join(PATIENCE_S)
    assert ended
    assert time.monotonic() - started < 5
    assert not is_running(engine)
