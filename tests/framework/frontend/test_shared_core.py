"""Who has the core has it alone, even against itself, and nobody has a dead one."""

import os
import threading
import time
import warnings

import pytest
from scripted_core import Reply, ScriptedCore, echo

from quire.errors import EngineDeadError, InvalidRequestError
from quire.frontend.batch import BatchFrontend
from quire.messages import ResetPrefixCache
from quire.registry import Source
from quire.sampling_params import SamplingParams

WHOLE = SamplingParams(max_tokens=None)
SOURCE = Source("curious", "curious-plugin", "1")


def with_hook(core, tokenizer, intake, act):
    """A frontend with a plugin that acts on it when a request is finished."""
    errors = []

    def hook(request, output):
        try:
            act(frontend)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)

    frontend = BatchFrontend(core, tokenizer, intake, finished_hooks=[(SOURCE, hook)])
    return frontend, errors


def test_a_step_that_raises_is_a_typed_error_then_and_ever_after(tokenizer, intake):
    cause = RuntimeError("out of smoke")
    core = ScriptedCore(lambda request: Reply(request.token_ids[:1], cause))
    frontend = BatchFrontend(core, tokenizer, intake)
    with pytest.raises(EngineDeadError, match="RuntimeError: out of smoke") as caught:
        frontend.generate(["the fox", "dog"], WHOLE)
    assert caught.value.__cause__ is cause
    num_steps = core.num_steps
    core.script = echo
    for call in (
        lambda: frontend.generate(["fox"], WHOLE),
        frontend.stats,
        lambda: frontend.control(ResetPrefixCache()),
    ):
        with pytest.raises(EngineDeadError, match="out of smoke"):
            call()
    assert (core.num_steps, core.controls) == (num_steps, [])
    frontend.close()
    assert core.is_shut_down


def test_a_plugin_cannot_call_the_engine_that_waits_for_it(tokenizer, intake):
    core = ScriptedCore(echo)
    again = lambda frontend: frontend.generate(["dog"], WHOLE)  # noqa: E731
    frontend, errors = with_hook(core, tokenizer, intake, again)
    assert frontend.generate(["fox"], WHOLE)[0].outputs[0].text == "fox"
    assert [type(error) for error in errors] == [InvalidRequestError]


def test_a_close_from_inside_a_call_ends_it_before_the_core_goes(tokenizer, intake):
    core = ScriptedCore(echo)
    was_shut_down = []

    def close(frontend):
        frontend.close()
        was_shut_down.append(core.is_shut_down)

    frontend, errors = with_hook(core, tokenizer, intake, close)
    with pytest.raises(EngineDeadError, match="closed"):
        frontend.generate(["fox", "the lazy dog"], WHOLE)
    assert (was_shut_down, core.is_shut_down, errors) == ([False], True, [])
    assert not core.has_work()


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have(tokenizer, intake):
    core = ScriptedCore(echo, step_s=0.1)
    frontend = BatchFrontend(core, tokenizer, intake)
    caller = threading.Thread(target=frontend.generate, args=(["the lazy dog"], WHOLE))
    caller.start()
    deadline = time.monotonic() + 5
    while core.num_steps == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert caller.is_alive()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        frontend.close()
        os._exit(7)
    deadline = time.monotonic() + 5
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
    caller.join(10)
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    assert not core.is_shut_down
