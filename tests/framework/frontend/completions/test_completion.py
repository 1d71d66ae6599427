"""Engine outputs become deltas, and the deltas add up to the output."""

import math

import pytest

from quire.errors import GrammarError, InvalidRequestError, OverloadedError, RequestFailedError
from quire.frontend.completions.completion import PromptState
from quire.frontend.completions.logprob_row import LOWEST_LOGPROB, LogprobRow
from quire.messages import AdapterRef, EngineOutput, ErrorReport, TokenLogprobs
from quire.outputs import Logprob
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams


def start(intake, tokenizer, *, prompt="the", hooks=(), adapter=None, **params):
    admission = intake.admit(prompt, SamplingParams(**params), adapter=adapter)
    return PromptState(admission, tokenizer, hooks)


def apply(completions, said):
    (completion,) = completions.apply(said)
    return completion.delta(), completion.must_abort


def output(completions, token_ids, *, child=0, **fields):
    request_id = completions.admission.requests[child].request_id
    return EngineOutput(request_id=request_id, token_ids=token_ids, **fields)


def test_deltas_add_up_to_the_completion(intake, tokenizer):
    completions = start(intake, tokenizer)
    ids = tokenizer.encode(" fox 👩‍👩‍👧")
    deltas = [apply(completions, output(completions, [i]))[0] for i in ids[:-1]]
    deltas.append(apply(completions, output(completions, ids[-1:], finish_reason="length"))[0])
    completion = completions.result().outputs[0]
    assert "".join(delta.text for delta in deltas) == completion.text == " fox 👩‍👩‍👧"
    assert [i for delta in deltas for i in delta.token_ids] == completion.token_ids == ids
    assert completion.finish_reason == deltas[-1].finish_reason == "length"
    assert completions.result().finished


def test_end_of_text_has_no_text_and_no_stop_reason(intake, tokenizer):
    completions = start(intake, tokenizer, skip_special_tokens=False)
    eos = tokenizer.eos_token_ids[0]
    delta, must_abort = apply(
        completions, output(completions, [eos], finish_reason="stop", stop_reason=eos)
    )
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("", [eos], None)
    assert not must_abort


@pytest.mark.parametrize(("include", "text"), [(False, ""), (True, " ")])
def test_a_stop_token_of_the_caller_is_the_reason(intake, tokenizer, include, text):
    blank = tokenizer.encode(" ")[0]
    completions = start(
        intake, tokenizer, stop_token_ids=[blank], include_stop_str_in_output=include
    )
    taken = apply(
        completions, output(completions, [blank], finish_reason="stop", stop_reason=blank)
    )
    assert (taken[0].text, taken[0].stop_reason) == (text, blank)


def test_a_stop_string_ends_the_completion_and_aborts_the_request(intake, tokenizer):
    completions = start(intake, tokenizer, stop=["zy d"])
    ids = tokenizer.encode("lazy dog fox")
    delta, must_abort = apply(completions, output(completions, ids))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("la", "stop", "zy d")
    assert must_abort
    assert "zy d" in tokenizer.decode(delta.token_ids)
    assert len(delta.token_ids) < len(ids)
    assert completions.is_finished


def test_a_stop_string_in_the_last_step_needs_no_abort(intake, tokenizer):
    completions = start(intake, tokenizer, stop=["dog"])
    ids = tokenizer.encode("dog")
    delta, must_abort = apply(completions, output(completions, ids, finish_reason="length"))
    assert (delta.finish_reason, delta.stop_reason, must_abort) == ("stop", "dog", False)


def test_an_incomplete_stop_string_and_character_come_with_the_end(intake, tokenizer):
    completions = start(intake, tokenizer, stop=["dogs"])
    ids = tokenizer.encode("dog")
    assert apply(completions, output(completions, ids))[0].text == ""
    assert apply(completions, output(completions, [], finish_reason="length"))[0].text == "dog"
    completions = start(intake, tokenizer)
    first = next(i for i in range(400) if tokenizer.token_bytes(i) == b"\xf0")
    delta, _ = apply(completions, output(completions, [first], finish_reason="length"))
    assert delta.text == "\ufffd"


@pytest.mark.parametrize("include", [False, True])
def test_a_completion_ends_at_the_match_of_a_stop_regex(intake, tokenizer, include):
    ids = tokenizer.encode("dog 12. fox")
    options = {"stop_regex": [r"\d+\."], "include_stop_str_in_output": include}
    completions = start(intake, tokenizer, **options)
    must_abort = False
    while not must_abort:
        _, must_abort = apply(completions, output(completions, [ids.pop(0)]))
    (found,) = completions.result().outputs
    assert found.text == ("dog 12." if include else "dog ")
    assert (found.finish_reason, found.stop_reason) == ("stop", r"\d+\.")


def test_logprobs_name_the_chosen_token_first(intake, tokenizer):
    completions = start(intake, tokenizer, logprobs=2)
    the, fox, dog = (tokenizer.encode(text)[0] for text in ("t", "f", "d"))
    row = TokenLogprobs([the, fox, the], [-2.0, -0.1, -2.0], rank=2)
    delta, _ = apply(completions, output(completions, [the], logprobs=[row]))
    assert list(delta.logprobs[0]) == [the, fox]
    chosen, other = delta.logprobs[0].values()
    assert (chosen.rank, chosen.logprob, chosen.decoded_token) == (2, -2.0, "t")
    assert (other.rank, other.decoded_token) == (1, "f")
    row = TokenLogprobs([dog, fox, the], [-math.inf, math.nan, -1.0], rank=9)
    delta, _ = apply(completions, output(completions, [dog], logprobs=[row]))
    assert [entry.logprob for entry in delta.logprobs[0].values()] == [
        LOWEST_LOGPROB, LOWEST_LOGPROB, -1.0,
    ]  # fmt: skip
    row = TokenLogprobs([dog], [-1e30], rank=9)
    delta, _ = apply(completions, output(completions, [dog], logprobs=[row]))
    assert delta.logprobs[0][dog].logprob == LOWEST_LOGPROB
    assert len(completions.result().outputs[0].logprobs) == 3


def test_named_tokens_have_no_rank(intake, tokenizer):
    the, fox = (tokenizer.encode(text)[0] for text in ("t", "f"))
    completions = start(intake, tokenizer, logprob_token_ids=[fox, the])
    row = TokenLogprobs([the, fox, the], [-2.0, -9.5, -2.0], rank=4)
    delta, _ = apply(completions, output(completions, [the], logprobs=[row]))
    assert [(i, each.rank) for i, each in delta.logprobs[0].items()] == [(the, 4), (fox, None)]


@pytest.mark.parametrize("is_flat", [False, True])
def test_flat_logprobs_are_compact_mappings(intake, tokenizer, is_flat):
    completions = start(intake, tokenizer, logprobs=1, prompt_logprobs=1, flat_logprobs=is_flat)
    row = TokenLogprobs([5, 6], [-2.0, -0.1], rank=2)
    apply(completions, output(completions, [5], logprobs=[row], prompt_logprobs=[row]))
    result = completions.result()
    for found in (result.outputs[0].logprobs[0], result.prompt_logprobs[1]):
        assert isinstance(found, LogprobRow if is_flat else dict)
        assert found == {
            5: Logprob(-2.0, 2, tokenizer.token_text(5)),
            6: Logprob(-0.1, 1, tokenizer.token_text(6)),
        }


@pytest.mark.parametrize("logprobs", [None, 0])
def test_the_best_completions_are_returned_the_best_first(intake, tokenizer, logprobs):
    completions = start(intake, tokenizer, n=2, best_of=4, logprobs=logprobs)
    sums = {0: [-1.0, -2.0], 1: [-0.5, -0.5], 2: [-4.0], 3: [-1.0, 0.0]}
    for child, values in sums.items():
        request_id = completions.admission.requests[child].request_id
        rows = [TokenLogprobs([child + 5], [value], 1) for value in values]
        completions.apply(
            EngineOutput(
                request_id=request_id, token_ids=[child + 5] * len(values), logprobs=rows,
                finish_reason="length",
            )
        )  # fmt: skip
    best = completions.result().outputs
    assert [output.index for output in best] == [0, 1]
    assert [output.token_ids for output in best] == [[6, 6], [8, 8]], "the first of equal ones"
    assert [output.cumulative_logprob for output in best] == [-1.0, -1.0]
    assert [output.logprobs is None for output in best] == [logprobs is None] * 2


def test_logprobs_that_were_not_requested_are_none(intake, tokenizer):
    completions = start(intake, tokenizer)
    assert apply(completions, output(completions, [1]))[0].logprobs is None
    assert completions.result().outputs[0].logprobs is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_grammar", GrammarError),
        ("adapter_error", InvalidRequestError),
        ("overloaded", OverloadedError),
        ("worker_failed", RequestFailedError),
    ],
)
def test_errors_of_the_engine_are_typed(intake, tokenizer, code, kind):
    completions = start(intake, tokenizer)
    report = ErrorReport(code, "it cannot be")
    with pytest.raises(kind, match="it cannot be"):
        apply(completions, output(completions, [], finish_reason="error", error=report))
    assert completions.is_finished


def test_n_completions_are_kept_apart(intake, tokenizer):
    completions = start(intake, tokenizer, n=2)
    fox, dog = tokenizer.encode("fox"), tokenizer.encode("dog")
    assert (
        apply(completions, output(completions, dog, child=1, finish_reason="length"))[0].index == 1
    )
    assert not completions.is_finished
    apply(completions, output(completions, fox, child=0, finish_reason="length"))
    assert [c.text for c in completions.result().outputs] == ["fox", "dog"]


def test_an_aborted_completion_keeps_its_text(intake, tokenizer):
    completions = start(intake, tokenizer, stop=["dogs"])
    apply(completions, output(completions, tokenizer.encode("the dog")))
    (delta,) = completions.abort()
    assert (delta.text, delta.finish_reason) == ("dog", "abort")
    assert completions.result().outputs[0].text == "the dog"
    assert completions.abort() == []


def test_the_output_names_its_adapter_and_prompt(intake, tokenizer):
    completions = start(intake, tokenizer, adapter=AdapterRef("pirate", "/adapters/pirate"))
    apply(completions, output(completions, [1], finish_reason="length", num_cached_tokens=2))
    result = completions.result()
    assert (result.prompt, result.prompt_token_ids) == ("the", tokenizer.encode("the"))
    assert (result.lora_request.lora_name, result.num_cached_tokens) == ("pirate", 2)


def test_cached_tokens_are_those_of_the_first_completion(intake, tokenizer):
    completions = start(intake, tokenizer, n=2)
    apply(
        completions, output(completions, [1], child=1, finish_reason="length", num_cached_tokens=2)
    )
    assert completions.result().num_cached_tokens == 0  # what child 0 computed, for both of them


def test_prompt_logprobs_of_chunks_are_one_list(intake, tokenizer):
    ids = [20, 21, 22, 23, 24, 25]
    completions = start(intake, tokenizer, prompt=ids, n=2, prompt_logprobs=1)
    rows = [TokenLogprobs([token_id, 9], [-2.0, -1.0], 2) for token_id in ids[1:]]
    parts = ((0, [], rows[:1]), (1, [5], None), (0, [], rows[1:2]), (0, [5], rows[2:]))
    deltas = [
        apply(completions, output(completions, sampled, child=child, prompt_logprobs=given))[0]
        for child, sampled, given in parts
    ]
    assert deltas[1].prompt_logprobs is None
    joined = [row for i in (0, 2, 3) for row in deltas[i].prompt_logprobs]
    assert joined == completions.result().prompt_logprobs
    assert joined[0] is None
    assert [next(iter(row)) for row in joined[1:]] == ids[1:]
    assert [(row[9].rank, row[9].logprob) for row in joined[1:]] == [(1, -1.0)] * (len(ids) - 1)
    assert joined[1][ids[1]].decoded_token == tokenizer.token_text(ids[1])
    later = apply(completions, output(completions, [5]))[0]
    assert later.prompt_logprobs is None


def test_a_prompt_of_one_token_has_nothing_to_say(intake, tokenizer):
    completions = start(intake, tokenizer, prompt=[5], prompt_logprobs=1)
    delta, _ = apply(completions, output(completions, [1], finish_reason="length"))
    assert delta.prompt_logprobs == completions.result().prompt_logprobs == [None]


def test_prompt_logprobs_that_were_not_requested_are_none(intake, tokenizer):
    completions = start(intake, tokenizer)
    delta, _ = apply(completions, output(completions, [1], finish_reason="length"))
    assert delta.prompt_logprobs is completions.result().prompt_logprobs is None


def test_plugins_hear_of_the_end_and_their_errors_change_nothing(intake, tokenizer, caplog):
    seen = []

    def fail(*, request, output):
        seen.append((request.request_id, output.finish_reason))
        raise ValueError("a bug")

    hooks = [(Source("acme", "acme-quire", "1.0"), fail)]
    completions = start(intake, tokenizer, hooks=hooks)
    apply(completions, output(completions, [1]))
    apply(completions, output(completions, [1], finish_reason="length"))
    assert seen == [(completions.admission.requests[0].request_id, "length")]
    assert "acme" in caplog.text


def hooked(intake, tokenizer, heard, error=None, **params):
    def hook(*, request, output):
        heard.append((request.child, output.finish_reason))
        if error is not None:
            raise error

    return start(intake, tokenizer, hooks=[(Source("acme", "acme-quire", "1.0"), hook)], **params)


@pytest.mark.parametrize("error", [None, ValueError("x"), KeyError("x"), OSError("x"), TypeError()])
def test_plugins_hear_of_every_end_once_whatever_they_do(intake, tokenizer, caplog, error):
    heard = []
    completions = hooked(intake, tokenizer, heard, error, n=3)
    assert (
        apply(completions, output(completions, [1], finish_reason="length"))[0].finish_reason
        == "length"
    )
    report = ErrorReport("x", "it broke")
    with pytest.raises(RequestFailedError):
        apply(completions, output(completions, [], child=1, finish_reason="error", error=report))
    assert len(completions.abort()) == 1
    assert completions.abort() == []
    assert heard == [(0, "length"), (1, "error"), (2, "abort")]
    assert ("plugin acme" in caplog.text) is (error is not None)


def test_a_stop_string_is_an_end_that_plugins_hear_of(intake, tokenizer):
    heard = []
    completions = hooked(intake, tokenizer, heard, stop=["dog"])
    apply(completions, output(completions, tokenizer.encode("dog")))
    assert [child for child, _ in heard] == [0]


def test_tokens_and_log_probabilities_end_with_the_stop_string(intake, tokenizer):
    completions = start(intake, tokenizer, stop=["zy d"], logprobs=0)
    ids = tokenizer.encode("lazy dog fox")
    rows = [TokenLogprobs([token_id], [-1.0], rank=1) for token_id in ids]
    delta, must_abort = apply(completions, output(completions, ids, logprobs=rows))
    assert must_abort
    num = next(n for n in range(len(ids)) if "zy d" in tokenizer.decode(ids[:n]))
    assert delta.token_ids == ids[:num]
    assert [next(iter(row)) for row in delta.logprobs] == ids[:num]
    completion = completions.result().outputs[0]
    assert (completion.text, completion.token_ids, len(completion.logprobs)) == (
        "la",
        ids[:num],
        num,
    )


def test_text_after_a_stop_string_is_never_returned(intake, tokenizer):
    completions = start(intake, tokenizer, stop=["do"])
    first = next(i for i in range(400) if tokenizer.token_bytes(i) == b"\xf0")
    ids = [*tokenizer.encode("the dog"), first]
    delta, _ = apply(completions, output(completions, ids, finish_reason="length"))
    assert (delta.text, delta.stop_reason, delta.finish_reason) == ("the ", "do", "stop")
    assert completions.result().outputs[0].text == "the "


def test_deltas_bring_what_is_new_and_nothing_twice(intake, tokenizer):
    completions = start(intake, tokenizer, logprobs=0)
    emitted = []
    for token_id in (20, 21, 22):
        row = TokenLogprobs([token_id], [-1.0], rank=1)
        delta, _ = apply(completions, output(completions, [token_id], logprobs=[row]))
        emitted += [(list(delta.token_ids), [next(iter(row)) for row in delta.logprobs])]
    assert emitted == [([20], [20]), ([21], [21]), ([22], [22])]


@pytest.mark.parametrize(
    ("finish_reason", "include", "shown"),
    [("stop", False, ""), ("stop", True, " "), ("length", False, " "), ("length", True, " ")],
)
def test_a_stop_token_is_hidden_only_where_it_stopped(
    intake, tokenizer, finish_reason, include, shown
):
    blank = tokenizer.encode(" ")[0]
    completions = start(
        intake, tokenizer, stop_token_ids=[blank], include_stop_str_in_output=include
    )
    delta, _ = apply(completions, output(completions, [blank], finish_reason=finish_reason))
    assert delta.text == shown
    assert delta.stop_reason == (blank if finish_reason == "stop" else None)
    assert completions.result().outputs[0].text == shown  # and it does not become text later
    assert completions._completions[completions.admission.requests[0].request_id].delta().text == ""


def test_cached_tokens_are_never_fewer_than_said(intake, tokenizer):
    completions = start(intake, tokenizer)
    for said, kept in ((4, 4), (0, 4), (6, 6), (5, 6)):
        delta, _ = apply(completions, output(completions, [20], num_cached_tokens=said))
        assert delta.num_cached_tokens == kept
    assert completions.result().num_cached_tokens == 6


def test_a_result_shares_no_list_with_the_request(intake, tokenizer):
    completions = start(intake, tokenizer, logprobs=0)
    row = TokenLogprobs([20], [-1.0], rank=1)
    apply(completions, output(completions, [20], logprobs=[row]))
    result = completions.result()
    assert not result.finished
    result.prompt_token_ids.clear()
    result.outputs[0].token_ids.clear()
    result.outputs[0].logprobs.clear()
    again = completions.result()
    assert again.prompt_token_ids == tokenizer.encode("the")
    assert (again.outputs[0].token_ids, len(again.outputs[0].logprobs)) == ([20], 1)


def test_only_what_is_not_over_is_unfinished(intake, tokenizer):
    completions = start(intake, tokenizer, n=2)
    ids = [request.request_id for request in completions.admission.requests]
    assert completions.unfinished_ids == ids
    apply(completions, output(completions, [1], child=0, finish_reason="length"))
    assert completions.unfinished_ids == ids[1:]
    (delta,) = completions.abort()
    assert (delta.index, delta.finish_reason) == (1, "abort")
    assert completions.unfinished_ids == []
    assert [c.finish_reason for c in completions.result().outputs] == ["length", "abort"]


@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_completion_that_cannot_be_decoded_can_still_be_ended(intake, tokenizer, logprobs):
    completions = start(intake, tokenizer, logprobs=logprobs)
    rows = None if logprobs is None else [TokenLogprobs([20], [-1.0], 1)] * 3
    ids = [*tokenizer.encode("f"), "no id", *tokenizer.encode("x")]
    with pytest.raises(TypeError):
        apply(completions, output(completions, ids, logprobs=rows))
    (delta,) = completions.abort()
    assert delta.finish_reason == "abort"
    assert completions.is_finished
