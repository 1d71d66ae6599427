"""Engine outputs become deltas, and the deltas add up to the output."""

import math

import pytest

from quire.errors import GrammarError, InvalidRequestError, OverloadedError, RequestFailedError
from quire.frontend.logprob_row import LOWEST_LOGPROB
from quire.frontend.output import Answers
from quire.messages import AdapterRef, EngineOutput, ErrorReport, TokenLogprobs
from quire.registry import Source
from quire.sampling_params import SamplingParams


def start(intake, tokenizer, *, prompt="the", hooks=(), adapter=None, **params):
    admission = intake.admit(prompt, SamplingParams(**params), adapter=adapter)
    return Answers(admission, tokenizer, hooks)


def take(answers, said):
    answer = answers.take(said)
    return answer.delta(), answer.must_abort


def output(answers, token_ids, *, child=0, **fields):
    request_id = answers.admission.requests[child].request_id
    return EngineOutput(request_id=request_id, token_ids=token_ids, **fields)


def test_deltas_add_up_to_the_answer(intake, tokenizer):
    answers = start(intake, tokenizer)
    ids = tokenizer.encode(" fox 👩‍👩‍👧")
    deltas = [take(answers, output(answers, [i]))[0] for i in ids[:-1]]
    deltas.append(take(answers, output(answers, ids[-1:], finish_reason="length"))[0])
    completion = answers.result().outputs[0]
    assert "".join(delta.text for delta in deltas) == completion.text == " fox 👩‍👩‍👧"
    assert [i for delta in deltas for i in delta.token_ids] == completion.token_ids == ids
    assert completion.finish_reason == deltas[-1].finish_reason == "length"
    assert answers.result().finished


def test_end_of_text_has_no_text_and_no_stop_reason(intake, tokenizer):
    answers = start(intake, tokenizer, skip_special_tokens=False)
    eos = tokenizer.eos_token_ids[0]
    delta, must_abort = take(answers, output(answers, [eos], finish_reason="stop", stop_reason=eos))
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("", [eos], None)
    assert not must_abort


@pytest.mark.parametrize(("include", "text"), [(False, ""), (True, " ")])
def test_a_stop_token_of_the_caller_is_the_reason(intake, tokenizer, include, text):
    blank = tokenizer.encode(" ")[0]
    answers = start(intake, tokenizer, stop_token_ids=[blank], include_stop_str_in_output=include)
    taken = take(answers, output(answers, [blank], finish_reason="stop", stop_reason=blank))
    assert (taken[0].text, taken[0].stop_reason) == (text, blank)


def test_a_stop_string_ends_the_answer_and_tells_the_engine(intake, tokenizer):
    answers = start(intake, tokenizer, stop=["zy d"])
    ids = tokenizer.encode("lazy dog fox")
    delta, must_abort = take(answers, output(answers, ids))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("la", "stop", "zy d")
    assert must_abort
    assert "zy d" in tokenizer.decode(delta.token_ids)
    assert len(delta.token_ids) < len(ids)
    assert answers.is_finished


def test_a_stop_string_in_the_last_step_needs_no_abort(intake, tokenizer):
    answers = start(intake, tokenizer, stop=["dog"])
    ids = tokenizer.encode("dog")
    delta, must_abort = take(answers, output(answers, ids, finish_reason="length"))
    assert (delta.finish_reason, delta.stop_reason, must_abort) == ("stop", "dog", False)


def test_half_a_stop_string_and_half_a_character_come_with_the_end(intake, tokenizer):
    answers = start(intake, tokenizer, stop=["dogs"])
    ids = tokenizer.encode("dog")
    assert take(answers, output(answers, ids))[0].text == ""
    assert take(answers, output(answers, [], finish_reason="length"))[0].text == "dog"
    answers = start(intake, tokenizer)
    first = next(i for i in range(400) if tokenizer.token_bytes(i) == b"\xf0")
    delta, _ = take(answers, output(answers, [first], finish_reason="length"))
    assert delta.text == "\ufffd"


def test_logprobs_name_the_chosen_token_first(intake, tokenizer):
    answers = start(intake, tokenizer, logprobs=2)
    the, fox, dog = (tokenizer.encode(text)[0] for text in ("t", "f", "d"))
    row = TokenLogprobs([the, fox, the], [-2.0, -0.1, -2.0], rank=2)
    delta, _ = take(answers, output(answers, [the], logprobs=[row]))
    assert list(delta.logprobs[0]) == [the, fox]
    chosen, other = delta.logprobs[0].values()
    assert (chosen.rank, chosen.logprob, chosen.decoded_token) == (2, -2.0, "t")
    assert (other.rank, other.decoded_token) == (1, "f")
    row = TokenLogprobs([dog, fox, the], [-math.inf, math.nan, -1.0], rank=9)
    delta, _ = take(answers, output(answers, [dog], logprobs=[row]))
    assert [entry.logprob for entry in delta.logprobs[0].values()] == [
        LOWEST_LOGPROB, LOWEST_LOGPROB, -1.0,
    ]  # fmt: skip
    row = TokenLogprobs([dog], [-1e30], rank=9)
    delta, _ = take(answers, output(answers, [dog], logprobs=[row]))
    assert delta.logprobs[0][dog].logprob == LOWEST_LOGPROB
    assert len(answers.result().outputs[0].logprobs) == 3


def test_logprobs_that_nobody_asked_for_stay_away(intake, tokenizer):
    answers = start(intake, tokenizer)
    assert take(answers, output(answers, [1]))[0].logprobs is None
    assert answers.result().outputs[0].logprobs is None


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
    answers = start(intake, tokenizer)
    report = ErrorReport(code, "it cannot be")
    with pytest.raises(kind, match="it cannot be"):
        take(answers, output(answers, [], finish_reason="error", error=report))
    assert answers.is_finished


def test_n_answers_are_told_apart(intake, tokenizer):
    answers = start(intake, tokenizer, n=2)
    fox, dog = tokenizer.encode("fox"), tokenizer.encode("dog")
    assert take(answers, output(answers, dog, child=1, finish_reason="length"))[0].index == 1
    assert not answers.is_finished
    take(answers, output(answers, fox, child=0, finish_reason="length"))
    assert [c.text for c in answers.result().outputs] == ["fox", "dog"]


def test_an_aborted_answer_keeps_what_it_has(intake, tokenizer):
    answers = start(intake, tokenizer, stop=["dogs"])
    take(answers, output(answers, tokenizer.encode("the dog")))
    (delta,) = answers.abort()
    assert (delta.text, delta.finish_reason) == ("dog", "abort")
    assert answers.result().outputs[0].text == "the dog"
    assert answers.abort() == []


def test_the_output_names_its_adapter_and_prompt(intake, tokenizer):
    answers = start(intake, tokenizer, adapter=AdapterRef("pirate", "/adapters/pirate"))
    take(answers, output(answers, [1], finish_reason="length", num_cached_tokens=2))
    result = answers.result()
    assert (result.prompt, result.prompt_token_ids) == ("the", tokenizer.encode("the"))
    assert (result.lora_request.lora_name, result.num_cached_tokens) == ("pirate", 2)


def test_the_cache_is_told_by_the_first_answer(intake, tokenizer):
    answers = start(intake, tokenizer, n=2)
    take(answers, output(answers, [1], child=1, finish_reason="length", num_cached_tokens=2))
    assert answers.result().num_cached_tokens == 0  # what child 0 computed, for both of them


def test_prompt_logprobs_of_chunks_are_one_list(intake, tokenizer):
    ids = [20, 21, 22, 23, 24, 25]
    answers = start(intake, tokenizer, prompt=ids, n=2, prompt_logprobs=1)
    rows = [TokenLogprobs([token_id, 9], [-2.0, -1.0], 2) for token_id in ids[1:]]
    parts = ((0, [], rows[:1]), (1, [5], None), (0, [], rows[1:2]), (0, [5], rows[2:]))
    deltas = [
        take(answers, output(answers, drawn, child=child, prompt_logprobs=given))[0]
        for child, drawn, given in parts
    ]
    assert deltas[1].prompt_logprobs is None
    told = [row for i in (0, 2, 3) for row in deltas[i].prompt_logprobs]
    assert told == answers.result().prompt_logprobs
    assert told[0] is None
    assert [next(iter(row)) for row in told[1:]] == ids[1:]
    assert [(row[9].rank, row[9].logprob) for row in told[1:]] == [(1, -1.0)] * (len(ids) - 1)
    assert told[1][ids[1]].decoded_token == tokenizer.token_text(ids[1])
    later = take(answers, output(answers, [5]))[0]
    assert later.prompt_logprobs is None


def test_a_prompt_of_one_token_has_nothing_to_say(intake, tokenizer):
    answers = start(intake, tokenizer, prompt=[5], prompt_logprobs=1)
    delta, _ = take(answers, output(answers, [1], finish_reason="length"))
    assert delta.prompt_logprobs == answers.result().prompt_logprobs == [None]


def test_nobody_who_did_not_ask_gets_prompt_logprobs(intake, tokenizer):
    answers = start(intake, tokenizer)
    delta, _ = take(answers, output(answers, [1], finish_reason="length"))
    assert delta.prompt_logprobs is answers.result().prompt_logprobs is None


def test_plugins_hear_of_the_end_and_their_errors_change_nothing(intake, tokenizer, caplog):
    seen = []

    def fail(*, request, output):
        seen.append((request.request_id, output.finish_reason))
        raise ValueError("a bug")

    hooks = [(Source("acme", "acme-quire", "1.0"), fail)]
    answers = start(intake, tokenizer, hooks=hooks)
    take(answers, output(answers, [1]))
    take(answers, output(answers, [1], finish_reason="length"))
    assert seen == [(answers.admission.requests[0].request_id, "length")]
    assert "acme" in caplog.text
