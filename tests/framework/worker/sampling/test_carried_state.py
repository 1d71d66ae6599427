"""State that steps carry: who gets it, when it is stored, and what is wrong with it."""

import math
from itertools import pairwise

import pytest
import torch
from sampler_parts import tables_with

from quire.errors import RequestFailedError
from quire.interfaces.sampling import LogitsProcessor, RequestField
from quire.messages import ErrorReport
from quire.worker.batch.step_results import LaunchedStep, token_digest
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.gumbel.gumbel import Gumbel
from quire_samplers.gumbel.torch_gumbel import TorchGumbel
from quire_samplers.temperatures.temperature import Temperature

CPU = torch.device("cpu")
VOCAB_SIZE = 40
SUM = RequestField("sum_of_tokens", int, 0)
LAST = RequestField("last_token", int, 0)


class SumOfTokens(LogitsProcessor):
    """Carries the sum and the number of the sampled tokens, from `sum_of_tokens` on."""

    def is_neutral(self, fields):
        return fields.get("sum_of_tokens", 0) == 0

    def initial_state(self, fields):
        return [fields["sum_of_tokens"], 0]

    def apply(self, logits, rows):
        return logits

    def observe(self, logits, rows, token_ids):
        assert logits.shape == (len(rows.slots), VOCAB_SIZE)
        assert len(rows.host_fields) == len(rows.positions) == len(token_ids)
        total = rows.field("total") + token_ids[:, None]
        return torch.cat((total, rows.field("count") + 1), 1)


class LastToken(LogitsProcessor):
    """Forbids the last token, which it carries."""

    def is_neutral(self, fields):
        return fields.get("last_token", 0) == 0

    def initial_state(self, fields):
        return [fields["last_token"]]

    def apply(self, logits, rows):
        is_off = rows.field("last_token") == 0
        return logits.scatter_add(1, rows.field("last").long(), torch.where(is_off, 0, -torch.inf))

    def observe(self, logits, rows, token_ids):
        return token_ids[:, None].float()


STATES = {SumOfTokens: ("total", "count"), LastToken: ("last",)}


def pipeline_of(requests, steps=(SumOfTokens, LastToken), sampler=TorchGumbel, stage="bias"):
    states = {
        i: STATES[kind] for i, step in enumerate(steps) for kind in STATES if issubclass(step, kind)
    }
    names = [name for own in states.values() for name in own]
    tables = tables_with(requests, (SUM, LAST), names)
    own = [(stage, step(VOCAB_SIZE, CPU)) for step in steps]
    names = [f"sampler {step.__name__}" for step in (*steps, sampler)]
    fused = [index for index, step in enumerate(steps) if step in (Temperature, MinP, TopKTopP)]
    pipeline = SamplingPipeline(
        own, sampler(VOCAB_SIZE, CPU), tables, names, states=states, fused=fused
    )
    for slot, request in enumerate(requests):
        assign(pipeline, slot, request)
    tables.push()
    return pipeline


def assign(pipeline, slot, request, state=None):
    fields = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **request}
    active = pipeline.active_steps(fields)
    pipeline.tables.info_of(slot).active_steps = active
    pipeline.tables.states.write(slot, state or pipeline.initial_state(active, fields))
    pipeline.tables.push()


def logits_of(num_rows, seed=2):
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def run(pipeline, slots, logits=None):
    logits = logits_of(len(slots)) if logits is None else logits
    return pipeline.run(logits.clone(), slots, torch.tensor(slots), ())


def state_in(pipeline, slot):
    return {name: values[slot].item() for name, values in pipeline.tables.states.device.items()}


def test_each_row_that_needs_a_step_gets_its_next_state():
    pipeline = pipeline_of([{"sum_of_tokens": 5}, {}, {"sum_of_tokens": 9, "last_token": 3}])
    token_ids, _, _, states = run(pipeline, [2, 0, 1]).read()
    first, second, _ = token_ids
    assert states == [
        {"total": 9 + first, "count": 1, "last": first},
        {"total": 5 + second, "count": 1},
        None,
    ]


def test_states_are_stored_only_when_the_step_of_the_engine_has_succeeded():
    pipeline = pipeline_of([{"sum_of_tokens": 5}, {"last_token": 4}])
    before = [state_in(pipeline, slot) for slot in (0, 1)]
    assert before == [{"total": 5, "count": 0, "last": 0}, {"total": 0, "count": 0, "last": 4}]
    sampled = run(pipeline, [0, 1])
    assert [state_in(pipeline, slot) for slot in (0, 1)] == before
    again = run(pipeline, [0, 1])  # as after a failure
    assert again.read() == sampled.read()
    sampled.states.store(pipeline.tables.states)
    first, second = sampled.read().token_ids
    assert [state_in(pipeline, slot) for slot in (0, 1)] == [
        {"total": 5 + first, "count": 1, "last": 0},
        {"total": 0, "count": 0, "last": second},
    ]


def test_the_next_token_depends_on_the_stored_state():
    pipeline = pipeline_of([{"last_token": 7}])
    peaked = torch.zeros(1, VOCAB_SIZE)
    peaked[:, 3], peaked[:, 8] = 50.0, 49.0
    found = []
    for _ in range(4):
        sampled = run(pipeline, [0], peaked)
        sampled.states.store(pipeline.tables.states)
        found += sampled.read().token_ids
    assert all(token != after for token, after in pairwise(found))
    assert set(found) == {3, 8}


def test_neutral_rows_keep_the_bits_of_their_states():
    pipeline = pipeline_of([{}, {"sum_of_tokens": 5}])
    pipeline.tables.states.write(0, {"total": 0.1, "count": -0.0, "last": 3.0})
    pipeline.tables.push()
    before = state_in(pipeline, 0)
    run(pipeline, [0, 1]).states.store(pipeline.tables.states)
    assert state_in(pipeline, 0) == before
    assert math.copysign(1, before["count"]) == -1


def test_a_batch_without_state_observes_nothing():
    sampled = run(pipeline_of([{}, {}]), [0, 1])
    assert sampled.states is None
    assert sampled.read().states == [None, None]


def test_a_slot_that_is_assigned_again_has_the_state_of_the_assignment():
    pipeline = pipeline_of([{"sum_of_tokens": 5}])
    run(pipeline, [0]).states.store(pipeline.tables.states)
    assign(pipeline, 0, {"sum_of_tokens": 2})
    assert state_in(pipeline, 0)["total"] == 2
    assign(pipeline, 0, {"sum_of_tokens": 2}, {"total": 77.0, "count": 3.0})
    assert run(pipeline, [0]).read().states[0]["count"] == 4


def test_batches_with_state_are_not_fused():
    class Fails(Gumbel):
        def sample_fused(self, logits, rows):
            raise AssertionError

    fusable = (Temperature, MinP, TopKTopP)
    for steps in ((SumOfTokens, *fusable), (*fusable, SumOfTokens)):
        pipeline = pipeline_of([{"sum_of_tokens": 5}, {}], steps, Fails, stage="filter")
        assert not pipeline.is_fused([0], ())
        assert pipeline.is_fused([1], ())
        assert run(pipeline, [0]).read().states == [
            {"total": 5 + run(pipeline, [0]).read().token_ids[0], "count": 1}
        ]


def test_a_state_that_is_not_finite_fails_its_request_by_the_name_of_the_step():
    class Overflows(SumOfTokens):
        def observe(self, logits, rows, token_ids):
            return super().observe(logits, rows, token_ids) * torch.where(
                rows.field("total") > 6, torch.nan, 1.0
            )

    pipeline = pipeline_of([{"sum_of_tokens": 5}, {"sum_of_tokens": 9}], (Overflows,))
    sampled = run(pipeline, [0, 1])
    result = LaunchedStep(1, [([0, 1], sampled)], [], {}, "sampler TorchGumbel").read()
    right, failed = result.results
    assert right.state["count"] == 1
    assert right.error is None
    assert (failed.token_ids, failed.state) == ([], None)
    assert failed.error.message.startswith("sampler Overflows returned a state that is not finite")
    assert "total = nan, count = nan" in failed.error.message


def test_a_row_without_a_token_fails_by_its_logits_not_by_its_state():
    pipeline = pipeline_of([{"sum_of_tokens": 5}])
    broken = torch.full((1, VOCAB_SIZE), torch.nan)
    launched = LaunchedStep(1, [([0], run(pipeline, [0], broken))], [], {}, "sampler TorchGumbel")
    assert "logits are not finite" in launched.read().results[0].error.message


def test_a_token_id_out_of_range_never_reaches_a_step():
    class Gathers(SumOfTokens):
        def observe(self, logits, rows, token_ids):
            logits.gather(1, token_ids[:, None])
            return super().observe(logits, rows, token_ids)

    class Wrong(TorchGumbel):
        def sample(self, logits, rows):
            return torch.full((len(logits),), VOCAB_SIZE + 3)

    sampled = run(pipeline_of([{"sum_of_tokens": 5}], (Gathers,), Wrong), [0])
    (result,) = LaunchedStep(1, [([0], sampled)], [], {}, "sampler Wrong").read().results
    assert f"sampler Wrong returned token id {VOCAB_SIZE + 3}" in result.error.message


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (lambda token_ids: None, "returned None"),
        (lambda token_ids: token_ids[:, None].float(), r"of shape \[1, 1\]"),
        (lambda token_ids: token_ids[:, None].repeat(1, 2), "a int64 tensor"),
    ],
)
def test_a_state_of_another_kind_is_the_fault_of_the_step(returned, complaint):
    class Wrong(SumOfTokens):
        def observe(self, logits, rows, token_ids):
            return returned(token_ids)

    with pytest.raises(RequestFailedError, match=rf"sampler Wrong, for states, .*{complaint}"):
        run(pipeline_of([{"sum_of_tokens": 5}], (Wrong,)), [0])


def test_a_step_that_raises_is_named():
    class Wrong(SumOfTokens):
        def observe(self, logits, rows, token_ids):
            raise ZeroDivisionError

    with pytest.raises(RequestFailedError, match="sampler Wrong failed: ZeroDivisionError"):
        run(pipeline_of([{"sum_of_tokens": 5}], (Wrong,)), [0])


@pytest.mark.parametrize("initial", [[1.0], [1.0, math.nan], [1.0, 2.0, 3.0], [1e39, 0.0], []])
def test_an_initial_state_that_is_not_one_finite_number_each_is_refused(initial):
    class Wrong(SumOfTokens):
        def initial_state(self, fields):
            return initial

    pipeline = pipeline_of([{}], (Wrong,))
    with pytest.raises(RequestFailedError, match="sampler Wrong must return 2 finite"):
        pipeline.initial_state(1, {"sum_of_tokens": 5})


def test_a_step_without_an_initial_state_is_named():
    class Lacks(SumOfTokens):
        initial_state = LogitsProcessor.initial_state

    pipeline = pipeline_of([{}], (Lacks,))
    with pytest.raises(RequestFailedError, match="sampler Lacks failed: NotImplementedError"):
        pipeline.initial_state(1, {"sum_of_tokens": 5})


def test_the_warm_up_observes_with_every_step():
    class Wrong(SumOfTokens):
        def observe(self, logits, rows, token_ids):
            return super().observe(logits, rows, token_ids) / 0.0

    for step, is_wrong in ((SumOfTokens, False), (Wrong, True)):
        *_, last = pipeline_of([{}], (step, LastToken)).warm_up(logits_of(3))
        assert all(isinstance(state, ErrorReport) is is_wrong for state in last.read().states)


def test_workers_that_disagree_about_a_state_have_other_digests():
    def digest(sum_of_tokens):
        sampled = run(pipeline_of([{"sum_of_tokens": sum_of_tokens}]), [0])
        results = LaunchedStep(1, [([0], sampled)], [], {}, "s").read().results
        return results[0].token_ids, token_digest(1, results)

    (first, same), (second, other) = digest(5), digest(6)
    assert first == second
    assert same != other
    assert digest(5) == (first, same)
