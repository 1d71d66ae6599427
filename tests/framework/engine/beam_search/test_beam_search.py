"""Beam searches in the engine: with others, preempted, asynchronous, aborted and refused."""

import msgspec
from beam_parts import BeamExecutor, searched
from engine_parts import EOS, ScriptedGrammars, make_message, make_scheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine.core import EngineCore
from quire.sampling_params import BeamSearchParams

VOCAB_SIZE = 23


def beam_message(name, prompt, width, max_tokens, n=None, **params):
    beams = BeamSearchParams(beam_width=width, n=n, max_tokens=max_tokens, **params)
    return msgspec.structs.replace(
        make_message(name, prompt=prompt, max_tokens=max_tokens),
        stop_token_ids=() if beams.ignore_eos else (EOS,),
        params=beams.sampling_params(),
        beam_search=beams,
    )


def make_beam_core(num_blocks=200, seed=0, async_scheduling=False, num_stages=1, **settings):
    executor = BeamExecutor(VOCAB_SIZE, seed)
    scheduler = make_scheduler(num_blocks, pipeline_parallel_size=num_stages, **settings)
    core = EngineCore(
        scheduler,
        executor,
        executor,
        ScriptedGrammars(),
        async_scheduling=async_scheduling,
        pipeline_parallel_size=num_stages,
    )
    return core, executor


def finished(core, max_steps=3000):
    """Step until nothing is left; the last output of each request."""
    last = {}
    for _ in range(max_steps):
        if not core.has_work():
            return last
        for output in core.step().outputs:
            if output.finish_reason is not None:
                last[output.request_id] = output
    raise AssertionError(f"still busy after {max_steps} steps")


def check_all_is_free(core):
    scheduler = core.scheduler
    assert scheduler.kv.pool.num_used == 0
    assert not scheduler.requests
    assert scheduler._running.num_free_slots == scheduler.settings.max_num_seqs
    assert scheduler._running._reserved == {}


def test_the_beams_are_those_of_a_search_without_a_cache():
    core, _ = make_beam_core()
    message = beam_message("a", range(1, 8), 4, 12)
    core.add(message)
    output = finished(core)["a"]
    assert output.hypotheses == searched(message, VOCAB_SIZE, 0)
    assert output.finish_reason == output.hypotheses[0].finish_reason
    check_all_is_free(core)


def test_fewer_hypotheses_than_beams_can_be_asked_for():
    core, _ = make_beam_core()
    message = beam_message("a", range(1, 8), 4, 12, n=2)
    core.add(message)
    assert len(finished(core)["a"].hypotheses) == 2


def test_beams_share_the_blocks_of_the_prompt():
    core, _ = make_beam_core()
    core.add(beam_message("a", range(1, 41), 4, 6, ignore_eos=True))
    for _ in range(3):
        core.step()
    assert len(core.scheduler.running) == 4
    assert core.scheduler.kv.pool.num_used <= 10 + 4 * 2, "ten blocks of the prompt are shared"


def test_a_step_computes_each_beam_once():
    core, executor = make_beam_core()
    core.add(beam_message("a", range(1, 40), 4, 40, ignore_eos=True))
    finished(core)
    assert executor.num_computed == 39 + 39 * 4, "a fork computes nothing again"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_searches_and_requests_run_together(data):
    """Whatever runs beside it, a search finds what it finds alone; blocks hold what is read."""
    seed = data.draw(st.integers(0, 5), "seed")
    is_async = data.draw(st.booleans(), "async")
    num_stages = data.draw(st.sampled_from([1, 1, 2, 3]), "stages")
    core, _ = make_beam_core(
        data.draw(st.sampled_from([22, 30, 200]), "blocks"),
        seed,
        is_async and num_stages == 1,
        num_stages,
        max_num_seqs=data.draw(st.integers(4, 8), "slots"),
        max_num_batched_tokens=data.draw(st.sampled_from([8, 12, 60]), "budget"),
        enable_prefix_caching=data.draw(st.booleans(), "cache"),
    )
    messages, aborted = {}, set()
    for index in range(data.draw(st.integers(1, 5), "requests")):
        name, length = f"r{index}", data.draw(st.integers(1, 14))
        prompt = range(1, 1 + length)
        if data.draw(st.booleans()):
            message = beam_message(
                name,
                prompt,
                data.draw(st.integers(1, 4)),
                data.draw(st.integers(1, 9)),
                length_penalty=data.draw(st.sampled_from([0.0, 1.0])),
                ignore_eos=data.draw(st.booleans()),
            )
        else:
            message = make_message(name, prompt=prompt, max_tokens=data.draw(st.integers(1, 12)))
        messages[name] = message
        core.add(message)
        for _ in range(data.draw(st.integers(0, 6))):
            core.step()
        if data.draw(st.integers(0, 9)) == 0:
            core.abort([name])
            aborted.add(name)
    last = finished(core)
    for name, message in messages.items():
        if message.beam_search is None or name not in last:
            continue
        expected = searched(message, VOCAB_SIZE, seed)
        assert last[name].hypotheses == expected, name
    check_all_is_free(core)


def test_a_preempted_search_continues_where_it_was():
    core, _ = make_beam_core(num_blocks=60)
    for index in range(5):
        core.add(make_message(f"p{index}", prompt=range(1, 9), max_tokens=50, min_tokens=50))
    message = beam_message("beams", range(1, 12), 4, 40, ignore_eos=True)
    core.add(message)
    output = finished(core)["beams"]
    assert core.scheduler.num_preemptions > 0
    assert output.hypotheses == searched(message, VOCAB_SIZE, 0)
    check_all_is_free(core)


def test_an_aborted_search_frees_all_members():
    core, _ = make_beam_core()
    core.add(beam_message("a", range(1, 8), 4, 12, ignore_eos=True))
    for _ in range(4):
        core.step()
    core.abort(["a"])
    assert finished(core) == {}
    check_all_is_free(core)


def test_a_member_that_fails_fails_the_search():
    core, executor = make_beam_core()
    core.add(beam_message("a", range(1, 8), 4, 12, ignore_eos=True))
    for _ in range(4):
        core.step()
    executor.failing_slot = 2
    output = finished(core)["a"]
    assert (output.finish_reason, output.error.message) == ("error", "slot 2 failed")
    check_all_is_free(core)


def test_a_failed_step_is_computed_again():
    core, executor = make_beam_core()
    message = beam_message("a", range(1, 8), 4, 12, ignore_eos=True)
    core.add(message)
    for _ in range(5):
        core.step()
    executor.fails_once = True
    assert finished(core)["a"].hypotheses == searched(message, VOCAB_SIZE, 0)
    check_all_is_free(core)


def test_a_search_ends_at_its_deadline():
    core, _ = make_beam_core()
    message = beam_message("a", range(1, 8), 4, 12, ignore_eos=True)
    core.add(msgspec.structs.replace(message, timeout_s=1e-6))
    assert finished(core)["a"].error.code == "request_timeout"
    check_all_is_free(core)


def test_the_slots_of_all_beams_are_reserved():
    core, _ = make_beam_core(max_num_seqs=5)
    core.add(beam_message("a", range(1, 30), 4, 4, ignore_eos=True))
    core.add(beam_message("b", range(1, 30), 4, 4, ignore_eos=True))
    core.add(make_message("c", max_tokens=2))
    core.step()
    assert [request.request_id for request in core.scheduler.waiting] == ["b", "c"]
    assert {request.message.request_id for request in core.scheduler.running} == {"a"}
    last = finished(core)
    assert set(last) == {"a", "b", "c"}


def test_more_beams_than_the_engine_runs_are_refused():
    core, _ = make_beam_core(max_num_seqs=3)
    core.add(beam_message("a", range(1, 8), 4, 12))
    error = finished(core)["a"].error
    assert error.code == "out_of_capacity"
    assert "4" in error.message
    assert "--max-num-seqs" in error.message


def test_a_search_whose_beams_cannot_fit_together_is_refused():
    core, _ = make_beam_core(num_blocks=12)
    core.add(make_message("one", prompt=range(1, 8), max_tokens=12))
    core.add(beam_message("a", range(1, 8), 4, 12))
    last = finished(core)
    assert last["one"].error is None
    assert "KV blocks" in last["a"].error.message
