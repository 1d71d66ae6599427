"""The pipeline runs the steps that a batch needs, fused into the sampler where possible."""

import re

import pytest
import torch
from sampler_parts import bitmask, tables_with

from quire.errors import RequestFailedError
from quire.interfaces.sampling import LogitsProcessor, RequestField, SampledRows
from quire.worker.sampling.row_logprobs import row_logprobs
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.gumbel.gumbel import Gumbel
from quire_samplers.gumbel.torch_gumbel import TorchGumbel
from quire_samplers.temperatures.temperature import Temperature

CPU = torch.device("cpu")
VOCAB_SIZE = 70
RAW, PROCESSED = "raw_logprobs", "processed_logprobs"
BUMP = RequestField("bump", int, 0)
MIXED = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 9},
    {"top_p": 0.7},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 1.0},
)


class Bump(LogitsProcessor):
    """Adds much to token 4 of the requests with a `bump`."""

    def is_neutral(self, fields):
        return fields.get("bump", 0) == 0

    def apply(self, logits, rows):
        logits[:, 4] += rows.slot_fields["bump"][rows.slots] * 100.0
        return logits


class Noting(Gumbel):
    """Records which of its methods was called."""

    def __init__(self, *args):
        super().__init__(*args)
        self.methods = []

    def sample(self, logits, rows):
        self.methods.append("sample")
        return super().sample(logits, rows)

    def sample_fused(self, logits, rows):
        self.methods.append("fused")
        return super().sample_fused(logits, rows)


class Fails(LogitsProcessor):
    def is_neutral(self, fields):
        return False

    def apply(self, logits, rows):
        raise ZeroDivisionError


class LeavesNone(LogitsProcessor):
    """Forbids every token of the requests with a `bump`."""

    def is_neutral(self, fields):
        return fields.get("bump", 0) == 0

    def apply(self, logits, rows):
        forbidden = rows.slot_fields["bump"][rows.slots] > 0
        return logits.masked_fill_(forbidden.unsqueeze(1), -torch.inf)


STAGES = {
    Temperature: "temperature",
    MinP: "filter",
    TopKTopP: "filter",
    Bump: "bias",
    LeavesNone: "bias",
}


def pipeline_of(
    requests, steps=(Temperature, MinP, TopKTopP), sampler=Noting, *, fuses=True, mode=RAW
):
    """A pipeline, and slots for the requests."""
    tables = tables_with(requests, (BUMP,))
    own = [(STAGES.get(step, "filter"), step(VOCAB_SIZE, CPU)) for step in steps]
    fused = [steps.index(step) for step in (Temperature, MinP, TopKTopP)] if fuses else ()
    owners = [f"sampler {step.__name__}" for step in (*steps, sampler)]
    pipeline = SamplingPipeline(
        own, sampler(VOCAB_SIZE, CPU), tables, owners, fused=fused, logprobs_mode=mode
    )
    for slot, request in enumerate(requests):
        tables.info_of(slot).active_steps = pipeline.active_steps(
            {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **request},
            has_logprobs="num_logprobs" in request,
        )
    return pipeline


def random_logits(num_rows):
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)) * 3


def run(pipeline, logits, masks=()):
    slots = list(range(len(logits)))
    sampled = pipeline.run(logits.clone(), slots, torch.tensor(slots), masks)
    return sampled.read().token_ids


def test_a_fusing_sampler_gives_the_tokens_of_the_steps_one_by_one():
    logits = random_logits(len(MIXED))
    fusing, apart = pipeline_of(MIXED), pipeline_of(MIXED, fuses=False)
    assert run(fusing, logits) == run(apart, logits)
    assert (fusing.sampler.methods, apart.sampler.methods) == (["fused"], ["sample"])


def test_greedy_rows_alone_need_no_fused_sampling():
    pipeline = pipeline_of([{"temperature": 0.0}, {"temperature": 0.0, "top_k": 3}])
    logits = random_logits(2)
    assert run(pipeline, logits) == logits.argmax(-1).tolist()
    assert pipeline.sampler.methods == ["sample"]


def test_random_rows_without_filters_are_sampled_like_those_with_filters():
    requests, logits = [{"temperature": 0.0}, {"temperature": 1.0}], random_logits(2)
    fusing, apart = pipeline_of(requests), pipeline_of(requests, fuses=False)
    assert run(fusing, logits) == run(apart, logits)
    assert fusing.sampler.methods == ["fused"]


def test_a_slot_assigned_to_another_request_has_its_sampling_needs():
    pipeline = pipeline_of([{"temperature": 0.0}, {"temperature": 0.0}])
    logits = random_logits(2)
    top = run(pipeline, logits)
    other = tables_with([{"temperature": 1.0, "top_k": 1}, {"temperature": 0.0, "min_tokens": 9}])
    for slot in (0, 1):
        info = pipeline.tables.info[slot] = other.info_of(slot)
        info.active_steps = pipeline.active_steps(info.fields)
        info.stop_token_ids = (top[slot],)
    found = run(pipeline, logits)
    assert pipeline.sampler.methods == ["sample", "fused"]
    assert found[0] == top[0]
    assert found[1] == logits[1].topk(2).indices[1], "the completion may not end yet"


@pytest.mark.parametrize(
    ("steps", "method"),
    [
        ((Bump, Temperature, MinP, TopKTopP), "fused"),
        ((Temperature, Bump, MinP, TopKTopP), "sample"),
        ((Temperature, MinP, TopKTopP, Bump), "sample"),
    ],
)
def test_a_step_among_or_after_the_fused_ones_prevents_fusing(steps, method):
    requests = [*MIXED, {"temperature": 0.7, "bump": 1}]
    logits = random_logits(len(requests))
    pipeline = pipeline_of(requests, steps)
    assert run(pipeline, logits) == run(pipeline_of(requests, steps, fuses=False), logits)
    assert pipeline.sampler.methods == [method]
    assert not pipeline.is_fused([0, len(requests) - 1], ())
    assert pipeline.is_fused([0, 1, 2], ()), "only where it is needed"


def test_only_what_the_sampler_alone_can_do_is_fused():
    stopping = {"min_tokens": 4, "stop_token_ids": (1,)}
    requests = [*MIXED, {"num_logprobs": 2}, stopping, {**stopping, "num_generated": 4}]
    pipeline = pipeline_of(requests)
    plain = [0, 1, 2, 3, 4]
    assert pipeline.is_fused(plain, ())
    assert not pipeline.is_fused(plain, [bitmask(1, [3], VOCAB_SIZE)])
    assert not pipeline.is_fused([*plain, 5], ()), "log probabilities"
    assert not pipeline.is_fused([*plain, 6], ()), "a completion that may not end yet"
    assert pipeline.is_fused([*plain, 7], ()), "it may end now"


def test_a_sampler_that_fuses_nothing_is_never_captured():
    assert not pipeline_of(MIXED, sampler=TorchGumbel, fuses=False).is_fused([0], ())


def test_rows_without_host_fields_sample_the_same_tokens():
    pipeline = pipeline_of(MIXED)
    logits = random_logits(len(MIXED))
    tables = pipeline.tables
    rows = SampledRows(
        slots=torch.tensor([*range(len(MIXED)), tables.padding_slot]),
        positions=torch.tensor([*tables.num_known, 0]),
        slot_fields=tables.slot_fields,
        token_ids=tables.token_ids,
        num_prompt_tokens=tables.num_prompt_tokens,
    )
    padded = torch.cat((logits, torch.zeros(1, VOCAB_SIZE)))
    sampled = pipeline.sample_fused(padded, rows).first(len(MIXED))
    assert sampled.read().token_ids == run(pipeline, logits)


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_nan_logit_fails_its_row_alone(fuses, bad):
    pipeline = pipeline_of(MIXED, fuses=fuses)
    logits = random_logits(len(MIXED))
    good = run(pipeline, logits)
    for row in range(len(MIXED)):
        broken = logits.clone()
        broken[row, 11] = bad
        slots = list(range(len(MIXED)))
        sampled = pipeline.run(broken, slots, torch.tensor(slots), ()).read()
        assert sampled.is_valid == [other != row for other in slots]
        assert all(sampled.token_ids[slot] == good[slot] for slot in slots if slot != row)


@pytest.mark.parametrize("fuses", [True, False])
def test_a_row_that_allows_nothing_fails_alone(fuses):
    pipeline = pipeline_of(MIXED, fuses=fuses)
    slots = list(range(len(MIXED)))
    masks = [bitmask(2, [], VOCAB_SIZE)]
    sampled = pipeline.run(random_logits(len(MIXED)), slots, torch.tensor(slots), masks).read()
    assert sampled.is_valid == [slot != 2 for slot in slots]


def test_masks_come_before_fused_steps():
    pipeline = pipeline_of(MIXED)
    masks = [bitmask(slot, [40 + slot], VOCAB_SIZE) for slot in (4, 1)]
    sampled = run(pipeline, random_logits(len(MIXED)), masks)
    assert (sampled[1], sampled[4]) == (41, 44)


def test_log_probabilities_are_those_before_masks_and_steps():
    pipeline = pipeline_of([{"temperature": 0.5, "num_logprobs": 2}, {"top_k": 3}])
    logits = random_logits(2)
    sampled = pipeline.run(
        logits.clone(), [0, 1], torch.tensor([0, 1]), [bitmask(0, [9], VOCAB_SIZE)]
    )
    (token_id, _), _, (logprobs, none), _ = sampled.read()
    expected = logits[0].log_softmax(-1)
    assert token_id == 9
    assert logprobs.token_ids == [9, *expected.topk(2).indices.tolist()]
    top = expected.topk(2).values.tolist()
    assert logprobs.logprobs == pytest.approx([expected[9].item(), *top])
    assert logprobs.rank == 1 + int((expected > expected[9]).sum())
    assert none is None


def test_a_stop_token_that_may_not_come_yet_has_its_log_probability():
    stopping = {"min_tokens": 9, "stop_token_ids": (6,), "temperature": 0.0, "num_logprobs": 1}
    pipeline = pipeline_of([stopping])
    logits = random_logits(1)
    logits[:, 6] = 100.0
    (token_id,), _, (logprobs,), _ = pipeline.run(logits, [0], torch.tensor([0]), ()).read()
    assert token_id != 6
    assert logprobs.token_ids == [token_id, 6]


def test_log_probabilities_are_computed_for_the_rows_that_need_them_only(monkeypatch):
    requests = [{}, {"num_logprobs": 1}, {"temperature": 0.0}, {"num_logprobs": 3}, {}]
    pipeline = pipeline_of(requests)
    logits = random_logits(5)
    seen = []

    def noted(raw, *given, **options):
        seen.append(len(raw))
        return row_logprobs(raw, *given, **options)

    monkeypatch.setattr("quire.worker.sampling.sampling_pipeline.row_logprobs", noted)
    slots = list(range(5))
    sampled = pipeline.run(logits.clone(), slots, torch.tensor(slots), ()).read()
    assert seen == [2]
    assert [row for row in slots if sampled.logprobs[row] is not None] == [1, 3]
    for row, count in ((1, 1), (3, 3)):
        expected = logits[row].log_softmax(-1)
        token_ids = [sampled.token_ids[row], *expected.topk(count).indices.tolist()]
        assert sampled.logprobs[row].token_ids == token_ids
        assert sampled.logprobs[row].logprobs == pytest.approx(expected[token_ids].tolist())


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("as_logits", [False, True])
def test_processed_log_probabilities_are_those_after_masks_and_steps(fuses, as_logits):
    requests = [{"temperature": 0.5, "num_logprobs": 70}, {"top_k": 3}, {"num_logprobs": 1}]
    mode = "processed_logits" if as_logits else PROCESSED
    pipeline = pipeline_of(requests, fuses=fuses, mode=mode)
    logits = random_logits(3)
    slots, masks = [0, 1, 2], [bitmask(0, [9, 12], VOCAB_SIZE)]
    sampled = pipeline.run(logits.clone(), slots, torch.tensor(slots), masks).read()
    plain = pipeline_of(requests, fuses=fuses)
    assert sampled.token_ids == run(plain, logits, masks), "the setting changes no token"
    masked = torch.full((VOCAB_SIZE,), -torch.inf)
    masked[[9, 12]] = logits[0][[9, 12]] / 0.5
    expected = masked if as_logits else masked.log_softmax(-1)
    first, none, third = sampled.logprobs
    assert none is None
    assert first.token_ids[0] == sampled.token_ids[0]
    shown = dict(zip(first.token_ids, first.logprobs, strict=True))
    assert shown == pytest.approx(dict(enumerate(expected.clamp_min(-9999.0).tolist())))
    third_expected = logits[2] if as_logits else logits[2].log_softmax(-1)
    assert third.logprobs[0] == pytest.approx(third_expected[sampled.token_ids[2]].item())


@pytest.mark.parametrize("other", [{"temperature": 0.0}, {"top_p": 0.9}])
def test_processed_log_probabilities_of_a_greedy_row_do_not_depend_on_its_batch(other):
    greedy = {"temperature": 0.0, "top_k": 2, "num_logprobs": 3}
    logits = random_logits(2)
    pipeline = pipeline_of([greedy, other], mode=PROCESSED)
    (row, _) = pipeline.run(logits.clone(), [0, 1], torch.tensor([0, 1]), ()).read().logprobs
    top = logits[0].topk(2)
    assert row.token_ids[:3] == [top.indices[0], *top.indices]
    assert row.logprobs[1:3] == pytest.approx(top.values.log_softmax(-1).tolist())
    assert row.logprobs[3] == -9999.0


@pytest.mark.parametrize("fuses", [True, False])
def test_warming_up_samples_by_every_method_and_appends_nothing(fuses):
    pipeline = pipeline_of(MIXED, fuses=fuses)
    tables = pipeline.tables
    before = [tables.token_ids.clone(), *(column.clone() for column in tables.slot_fields.values())]
    num_known = tables.num_known.copy()
    pipeline.warm_up(random_logits(2))
    assert pipeline.sampler.methods == (
        ["sample", "fused", "sample"] if fuses else ["sample", "sample"]
    )
    after = [tables.token_ids, *tables.slot_fields.values()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert (tables.num_known == num_known).all()


@pytest.mark.parametrize("sampler", [Noting, TorchGumbel])
@pytest.mark.parametrize("steps", [(LeavesNone, Temperature), (Temperature, LeavesNone)])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_row_whose_steps_leave_no_token_fails_alone(sampler, steps, temperature):
    requests = [{}, {"bump": 1, "temperature": temperature}, {"temperature": 0.7}]
    pipeline = pipeline_of(requests, (*steps, MinP, TopKTopP), sampler, fuses=False)
    slots = [0, 1, 2]
    sampled = pipeline.run(random_logits(3), slots, torch.tensor(slots), ()).read()
    assert sampled.is_valid == [True, False, True]


def test_a_step_that_fails_is_named():
    pipeline = pipeline_of(MIXED, (Temperature, MinP, TopKTopP, Fails))
    with pytest.raises(RequestFailedError, match="sampler Fails failed: ZeroDivisionError"):
        run(pipeline, random_logits(len(MIXED)))


class ReturnsWrongly(LogitsProcessor):
    """Returns what `wrongly` makes of the logits."""

    wrongly = staticmethod(lambda logits: logits[:-1])

    def is_neutral(self, fields):
        return False

    def apply(self, logits, rows):
        return self.wrongly(logits)


WRONG_LOGITS = {
    "a row too few": (lambda logits: logits[:-1], r"float32 tensor of shape \[4, 70\]"),
    "one row for all": (lambda logits: logits[:1], r"shape \[1, 70\]"),
    "another type": (lambda logits: logits.double(), r"float64 tensor of shape \[5, 70\]"),
    "nothing": (lambda logits: None, "None"),
    "no tensor": (lambda logits: logits.tolist(), "a list"),
    "another device": (lambda logits: logits.to("meta"), "on meta"),
}


@pytest.mark.parametrize("wrong", WRONG_LOGITS)
def test_a_step_that_returns_no_logits_is_blamed_and_the_next_one_never_runs(wrong):
    class Wrong(ReturnsWrongly):
        wrongly = staticmethod(WRONG_LOGITS[wrong][0])

    pipeline = pipeline_of(MIXED, (Temperature, Wrong, Fails), fuses=False)
    wanted = r"it must return a float32 tensor of shape \[5, 70\] on cpu"
    with pytest.raises(RequestFailedError, match=f"sampler Wrong returned .*{wanted}") as failed:
        run(pipeline, random_logits(len(MIXED)))
    assert re.search(WRONG_LOGITS[wrong][1], str(failed.value))
    assert pipeline.sampler.methods == []


WRONG_TOKENS = {
    "a row too few": lambda token_ids: token_ids[:-1],
    "a column": lambda token_ids: token_ids.unsqueeze(1),
    "another type": lambda token_ids: token_ids.to(torch.int32),
    "nothing": lambda token_ids: None,
}


@pytest.mark.parametrize("requests", [MIXED, [{"temperature": 0.0}] * 5], ids=["mixed", "greedy"])
@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("wrong", WRONG_TOKENS)
def test_a_sampler_that_does_not_return_one_token_per_row_is_blamed(requests, fuses, wrong):
    class Wrong(Gumbel):
        def sample(self, logits, rows):
            return WRONG_TOKENS[wrong](super().sample(logits, rows))

        def sample_fused(self, logits, rows):
            return WRONG_TOKENS[wrong](super().sample_fused(logits, rows))

    pipeline = pipeline_of(requests, sampler=Wrong, fuses=fuses)
    wanted = r"it must return a int64 tensor of shape \[5\] on cpu"
    with pytest.raises(RequestFailedError, match=f"sampler Wrong returned .*; {wanted}"):
        run(pipeline, random_logits(5))


@pytest.mark.parametrize("requests", [MIXED, [{"temperature": 0.0}] * 5], ids=["mixed", "greedy"])
@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("bad", [VOCAB_SIZE, -1])
def test_an_id_out_of_range_is_blamed_on_its_row_or_on_the_sampler(requests, fuses, bad):
    """Where its logit is read at once, it fails; else the host finds it in what it reads."""

    class Beyond(Gumbel):
        def sample(self, logits, rows):
            return super().sample(logits, rows).index_fill_(0, torch.tensor([1]), bad)

        def sample_fused(self, logits, rows):
            return super().sample_fused(logits, rows).index_fill_(0, torch.tensor([1]), bad)

    pipeline = pipeline_of(requests, sampler=Beyond, fuses=fuses)
    slots = list(range(5))
    if requests is MIXED and not fuses:
        sampled = pipeline.run(random_logits(5), slots, torch.tensor(slots), ())
        assert sampled.read().is_valid == [True, False, True, True, True]
    else:
        with pytest.raises(RequestFailedError, match="sampler Beyond failed"):
            pipeline.run(random_logits(5), slots, torch.tensor(slots), ())


def test_a_grammar_counts_more_than_min_tokens():
    """What a grammar allows may be nothing but the end."""
    stopping = {"min_tokens": 9, "stop_token_ids": (6,), "temperature": 0.0}
    pipeline = pipeline_of([stopping, stopping])
    logits = random_logits(2)
    logits[:, 6] = 100.0
    slots = [0, 1]
    masks = [bitmask(1, [6], VOCAB_SIZE)]
    sampled = pipeline.run(logits, slots, torch.tensor(slots), masks).read()
    assert sampled.is_valid == [True, True]
    assert sampled.token_ids[1] == 6
    assert sampled.token_ids[0] != 6, "no grammar: it may not end yet"


def test_warming_up_runs_every_step_and_finds_what_always_fails():
    class NeverNeutral(Fails):
        def is_neutral(self, fields):
            raise KeyError("bump")

        def apply(self, logits, rows):
            return logits

    for step, error in ((Fails, "ZeroDivisionError"), (NeverNeutral, "KeyError")):
        tables = tables_with([{}] * 2, (BUMP,))
        steps = [("filter", step(VOCAB_SIZE, CPU))]
        pipeline = SamplingPipeline(steps, Gumbel(VOCAB_SIZE, CPU), tables, ["it", "the sampler"])
        with pytest.raises(RequestFailedError, match=f"it failed: {error}"):
            pipeline.warm_up(random_logits(2))


@pytest.mark.parametrize("is_greedy", [True, False])
def test_warming_up_samples_greedily_and_at_random(is_greedy):
    class FailsWhere(Gumbel):
        def sample(self, logits, rows):
            if rows.all_greedy == is_greedy:
                raise ZeroDivisionError
            return super().sample(logits, rows)

    pipeline = SamplingPipeline([], FailsWhere(VOCAB_SIZE, CPU), tables_with([{}]), ["the sampler"])
    with pytest.raises(RequestFailedError, match="the sampler failed"):
        pipeline.warm_up(random_logits(1))


def test_what_may_change_the_most_likely_token_counts_for_greedy_requests():
    requests = [{"temperature": 0.0, "bump": 1}, {"temperature": 0.0}]
    for steps in ((Bump, Temperature, MinP, TopKTopP), (Temperature, MinP, TopKTopP, Bump)):
        pipeline = pipeline_of(requests, steps)
        if steps[0] is Bump:
            assert run(pipeline, random_logits(2))[0] == 4
        active = pipeline.active_steps(requests[0] | {"top_k": 5, "top_p": 0.5, "min_p": 0.1})
        assert active == 1 << steps.index(Bump), "temperature and filters keep the order"


def test_one_request_of_many_may_not_end_yet():
    stopping = {"min_tokens": 9, "stop_token_ids": (6,), "temperature": 0.0}
    pipeline = pipeline_of([{"temperature": 0.0}, stopping])
    logits = random_logits(2)
    logits[:, 6] = 100.0
    first, second = run(pipeline, logits)
    assert first == 6
    assert second != 6


@pytest.mark.parametrize("needs", [{"num_logprobs": 0}, {"num_logprobs": 2}])
def test_captured_sampling_is_not_used_for_log_probabilities(needs):
    pipeline = pipeline_of([{"temperature": 1.0}, {"temperature": 1.0, **needs}])
    assert pipeline.is_fused([0], ())
    assert not pipeline.is_fused([0, 1], ())


def test_an_error_names_the_sampler_as_the_pipeline_does():
    assert pipeline_of(MIXED).sampler_name == "sampler Noting"
