"""Guided requests in the engine: with others, preempted, asynchronous, aborted and refused."""

import pytest
from engine_parts import ScriptedGrammars, make_message, make_scheduler
from guided_parts import GuidedExecutor, guided, guided_message
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine.core import EngineCore

VOCAB_SIZE = 23


def make_core(num_blocks=200, seed=0, async_scheduling=False, num_stages=1, **options):
    executor = GuidedExecutor(VOCAB_SIZE, seed)
    scheduler = make_scheduler(num_blocks, pipeline_parallel_size=num_stages, **options)
    core = EngineCore(
        scheduler,
        executor,
        executor,
        ScriptedGrammars(),
        async_scheduling=async_scheduling,
        pipeline_parallel_size=num_stages,
    )
    return core, executor


def run(core, max_steps=3000):
    """Step until nothing is left; the tokens and the last output of each request."""
    tokens, last = {}, {}
    for _ in range(max_steps):
        if not core.has_work():
            return tokens, last
        for output in core.step().outputs:
            ended = last.get(output.request_id)
            assert ended is None or ended.finish_reason is None, "an output after the last"
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
            last[output.request_id] = output
    raise AssertionError(f"still busy after {max_steps} steps")


def check_all_is_free(core):
    scheduler = core.scheduler
    assert scheduler.kv.pool.num_used == 0
    assert not scheduler.requests
    assert scheduler._running.num_free_slots == scheduler.settings.max_running
    assert scheduler._running._reserved == {}
    assert scheduler.stats(0).num_waiting == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("num_own", "num_other"), [(1, 1), (1, 9), (9, 1), (30, 3), (2, 33), (4, 4), (5, 8)]
)
def test_both_prompts_are_computed_before_the_first_token(num_own, num_other, is_async):
    core, _ = make_core(max_num_batched_tokens=7, async_scheduling=is_async)
    message = guided_message("a", range(1, 1 + num_own), range(40, 40 + num_other), 12)
    core.add(message)
    tokens, last = run(core)
    assert tokens == {"a": guided(message, VOCAB_SIZE, 0)}, "a companion has no output"
    assert last["a"].finish_reason in ("stop", "length")
    check_all_is_free(core)


def test_a_step_computes_each_of_the_pair_once():
    core, executor = make_core()
    core.add(guided_message("a", range(1, 30), range(40, 60), 10, ends=False))
    run(core)
    assert executor.num_computed == 29 + 20 + 2 * 9


def test_the_companion_finds_its_prefix():
    core, executor = make_core(enable_prefix_caching=True)
    for name in ("a", "b"):
        core.add(guided_message(name, range(1, 42), range(60, 101), 2, ends=False))
        run(core)
    assert executor.num_computed == 2 * (41 + 1) + 2 * (1 + 1)


def test_companions_wait_for_a_prompt_that_another_computes():
    core, executor = make_core(enable_prefix_caching=True, max_num_batched_tokens=500)
    messages = [
        guided_message(f"r{index}", range(1, 3 + index), range(60, 161), 2, ends=False)
        for index in range(4)
    ]
    for message in messages:
        core.add(message)
    tokens, _ = run(core)
    own = sum(len(message.token_ids) for message in messages)
    assert executor.num_computed <= own + 100 + 4 * (1 + 2), "one of them computes the prompt"
    assert tokens == {m.request_id: guided(m, VOCAB_SIZE, 0) for m in messages}
    check_all_is_free(core)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_guided_requests_and_others_run_together(data):
    """Whatever runs beside it, a request gets what it gets alone; blocks hold what is read."""
    seed = data.draw(st.integers(0, 5), "seed")
    num_stages = data.draw(st.sampled_from([1, 1, 2, 3]), "stages")
    core, executor = make_core(
        data.draw(st.sampled_from([18, 30, 200]), "blocks"),
        seed,
        data.draw(st.booleans(), "async") and num_stages == 1,
        num_stages,
        max_num_seqs=data.draw(st.integers(2, 7), "slots"),
        max_num_batched_tokens=data.draw(st.sampled_from([8, 12, 60]), "budget"),
        enable_prefix_caching=data.draw(st.booleans(), "cache"),
        enable_chunked_prefill=data.draw(st.sampled_from([True, True, False]), "chunked"),
    )
    messages, aborted, tokens = {}, set(), {}
    for index in range(data.draw(st.integers(1, 5), "requests")):
        name, length = f"r{index}", data.draw(st.integers(1, 14))
        if data.draw(st.integers(0, 3)):
            other = range(3, 3 + data.draw(st.integers(1, 14)))
            max_tokens = data.draw(st.integers(1, 9))
            message = guided_message(
                name, range(1, 1 + length), other, max_tokens, data.draw(st.booleans())
            )
        else:
            message = make_message(
                name, prompt=range(1, 1 + length), max_tokens=data.draw(st.integers(1, 12))
            )
        messages[name] = message
        core.add(message)
        for _ in range(data.draw(st.integers(0, 6))):
            if core.has_work():
                executor.fails_once = not data.draw(st.integers(0, 30))
                for output in core.step().outputs:
                    tokens.setdefault(output.request_id, []).extend(output.token_ids)
                    if output.error is not None:  # the only request of a step that failed
                        aborted.add(output.request_id)
                executor.fails_once = False
        if data.draw(st.integers(0, 9)) == 0:
            core.abort([name])
            aborted.add(name)
    rest, last = run(core)
    for name, more in rest.items():
        tokens.setdefault(name, []).extend(more)
        assert last[name].error is None or name in aborted or executor.has_failed
        aborted |= {name} if last[name].error is not None else set()
    for name, message in messages.items():
        if message.companion is not None and name not in aborted:
            assert tokens[name] == guided(message, VOCAB_SIZE, seed), name
    assert set(tokens) <= set(messages)
    check_all_is_free(core)


def test_a_preempted_pair_continues_where_it_was():
    core, _ = make_core(num_blocks=60, async_scheduling=True)
    for index in range(5):
        core.add(make_message(f"p{index}", prompt=range(1, 9), max_tokens=50, min_tokens=50))
    message = guided_message("a", range(1, 12), range(40, 61), 60, ends=False)
    core.add(message)
    tokens, _ = run(core)
    assert core.scheduler.num_preemptions > 0
    assert tokens["a"] == guided(message, VOCAB_SIZE, 0)
    check_all_is_free(core)


def test_an_aborted_request_frees_its_companion():
    core, _ = make_core()
    core.add(guided_message("a", range(1, 8), range(40, 43), 12, ends=False))
    for _ in range(4):
        core.step()
    core.abort(["a"])
    assert run(core)[1] == {}
    check_all_is_free(core)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_companion_that_fails_fails_the_request(slot):
    core, executor = make_core(max_num_seqs=2)
    core.add(guided_message("a", range(1, 8), range(40, 43), 12, ends=False))
    for _ in range(4):
        core.step()
    executor.failing_slot = slot
    _, last = run(core)
    assert last["a"].finish_reason == "error"
    assert set(last) == {"a"}
    check_all_is_free(core)


def test_a_failed_step_is_computed_again():
    core, executor = make_core()
    message = guided_message("a", range(1, 8), range(40, 43), 12, ends=False)
    core.add(message)
    core.add(make_message("b", max_tokens=20))
    tokens = []
    for _ in range(5):
        outputs = core.step().outputs
        tokens += [each for out in outputs if out.request_id == "a" for each in out.token_ids]
    executor.fails_once = True
    tokens += run(core)[0]["a"]
    assert tokens == guided(message, VOCAB_SIZE, 0)
    check_all_is_free(core)


def test_a_guided_request_waits_for_two_slots():
    core, _ = make_core(max_num_seqs=3)
    core.add(guided_message("a", range(1, 30), range(40, 43), 4, ends=False))
    core.add(guided_message("b", range(1, 30), range(40, 43), 4, ends=False))
    core.step()
    assert [request.request_id for request in core.scheduler.waiting] == ["b"]
    assert core.scheduler.stats(0).num_running == 2
    assert core.scheduler.stats(0).num_waiting == 1
    assert set(run(core)[1]) == {"a", "b"}


def test_it_starts_with_the_blocks_of_both_prompts():
    core, _ = make_core(num_blocks=20)
    core.add(make_message("first", prompt=range(1, 30), max_tokens=3))
    core.add(guided_message("a", range(1, 30), range(40, 65), 3, ends=False))
    core.step()
    assert [request.request_id for request in core.scheduler.waiting] == ["a"]
    assert set(run(core)[1]) == {"first", "a"}
    assert core.scheduler.num_preemptions == 0


def test_an_engine_that_runs_one_request_refuses_it():
    core, _ = make_core(max_num_seqs=1)
    core.add(guided_message("a", range(1, 8), [40], 12))
    error = run(core)[1]["a"].error
    assert error.code == "out_of_capacity"
    assert "--max-num-seqs" in error.message


def test_a_pair_that_cannot_fit_together_is_refused():
    core, _ = make_core(num_blocks=8)
    core.add(make_message("one", prompt=range(1, 8), max_tokens=12))
    core.add(guided_message("a", range(1, 8), range(40, 47), 12))
    last = run(core)[1]
    assert last["one"].error is None
    assert "KV blocks" in last["a"].error.message
