"""The intake makes complete requests, and refuses invalid ones."""

import time

import pytest

from quire.errors import (
    GrammarError,
    InvalidRequestError,
    PromptTooLongError,
    RequestError,
    RequestFailedError,
)
from quire.frontend.intake.intake import Intake
from quire.frontend.intake.prompt import EncodedPrompt
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.field_types import TokenSet, TokenTexts
from quire.interfaces.sampling import RequestField
from quire.interfaces.tool_parsing import CallGrammar
from quire.messages import AdapterRef
from quire.plugins.registry import Source
from quire.sampling_params import (
    MAX_SEED,
    BeamSearchParams,
    SamplingParams,
    StructuredOutputsParams,
)

ACME = Source("acme", "acme-quire", "1.0")
FIELDS = (
    RequestField("temperature", float, 1.0, 0.0, 100.0),
    RequestField("acme_bias", float, 0.5, -1.0, 1.0),
    RequestField("acme_on", bool, False),
)


def make(tokenizer, **options):
    options = {"max_model_len": 64, "vocab_size": tokenizer.vocab_size} | options
    return Intake(tokenizer, **options)


def test_text_ids_and_dicts_are_prompts(tokenizer, intake):
    ids = tokenizer.encode("the fox")
    for prompt in ("the fox", ids, tuple(ids), {"prompt": "the fox"}, {"prompt_token_ids": ids}):
        admission = intake.admit(prompt, SamplingParams())
        assert admission.requests[0].token_ids == ids
    both = intake.admit({"prompt": "shown", "prompt_token_ids": ids}, SamplingParams())
    assert (both.prompt.text, both.prompt.token_ids) == ("shown", ids)


def test_n_requests_differ_in_their_child_alone(intake):
    requests = intake.admit("fox", SamplingParams(n=3)).requests
    assert [r.child for r in requests] == [0, 1, 2]
    assert len({r.request_id for r in requests}) == 3
    assert len({(r.seed, tuple(r.token_ids), r.max_tokens, r.priority) for r in requests}) == 1


def test_the_first_completion_reports_on_the_prompt_for_all(intake):
    requests = intake.admit("fox", SamplingParams(n=3, prompt_logprobs=2)).requests
    assert [request.params.prompt_logprobs for request in requests] == [2, None, None]


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_no_more_log_probabilities_than_the_engine_reports(tokenizer, name):
    def resolved(count, max_logprobs):
        intake = make(tokenizer, max_logprobs=max_logprobs)
        (request,) = intake.admit("fox", SamplingParams(**{name: count})).requests
        return getattr(request.params, name)

    num_tokens = tokenizer.vocab_size
    assert [resolved(count, 20) for count in (0, 20)] == [0, 20]
    assert [resolved(count, -1) for count in (-1, 21, 2**31 - 1)] == [num_tokens, 21, num_tokens]
    for count, limit in ((21, 20), (-1, 20), (-1, num_tokens - 1), (1, 0)):
        with pytest.raises(InvalidRequestError, match="larger --max-logprobs") as caught:
            resolved(count, limit)
        assert caught.value.param == name


def test_a_prompt_has_only_so_many_log_probabilities(tokenizer, monkeypatch):
    monkeypatch.setattr("quire.frontend.intake.intake.MAX_PROMPT_CANDIDATES", 12)
    intake = make(tokenizer)
    intake.admit([1, 2, 3], SamplingParams(prompt_logprobs=3))
    with pytest.raises(InvalidRequestError, match="may have 12 in all") as caught:
        intake.admit([1, 2, 3], SamplingParams(prompt_logprobs=4))
    assert caught.value.param == "prompt_logprobs"


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**63, 1.0, True, "a"])
def test_a_named_token_that_is_none_is_refused(intake, token_id):
    with pytest.raises(InvalidRequestError, match="logprob_token_ids holds") as caught:
        intake.admit("fox", SamplingParams(logprob_token_ids=[0, token_id]))
    assert caught.value.param == "logprob_token_ids"


def test_a_completion_that_may_neither_end_nor_go_on_is_refused(tokenizer):
    (eos, *_) = tokenizer.eos_token_ids
    fields = [RequestField("allowed_token_ids", TokenSet(), [])]
    intake = make(tokenizer, fields=fields)
    for allowed, options in (([eos], {}), ([5, eos], {"stop_token_ids": [5]})):
        params = SamplingParams(allowed_token_ids=allowed, min_tokens=2, **options)
        with pytest.raises(InvalidRequestError, match="allow another one") as caught:
            intake.admit("fox", params)
        assert caught.value.param == "allowed_token_ids"
    intake.admit("fox", SamplingParams(allowed_token_ids=[5, eos], min_tokens=2))
    intake.admit("fox", SamplingParams(allowed_token_ids=[eos]))
    intake.admit("fox", SamplingParams(allowed_token_ids=[eos], min_tokens=2, ignore_eos=True))


def test_a_stop_regex_that_cannot_be_used_is_refused(intake):
    intake.admit("fox", SamplingParams(stop_regex=[r"\n\d+\.", "a|b"]))
    with pytest.raises(InvalidRequestError, match="backreference") as caught:
        intake.admit("fox", SamplingParams(stop_regex=["a", r"(a)\1"]))
    assert caught.value.param == "stop_regex"


def test_the_last_token_of_the_vocabulary_can_be_named(tokenizer, intake):
    last = tokenizer.vocab_size - 1
    intake.admit("fox", SamplingParams(logprob_token_ids=[last]))
    with pytest.raises(InvalidRequestError, match="logprob_token_ids holds"):
        intake.admit("fox", SamplingParams(logprob_token_ids=[last + 1]))


@pytest.mark.parametrize(("logprobs", "hides"), [(None, True), (0, False), (3, False)])
def test_the_best_are_found_by_log_probabilities(intake, logprobs, hides):
    params = SamplingParams(n=2, best_of=5, logprobs=logprobs)
    admission = intake.admit("fox", params)
    assert [request.child for request in admission.requests] == [0, 1, 2, 3, 4]
    assert {request.params.logprobs for request in admission.requests} == {logprobs or 0}
    assert admission.hides_logprobs is hides
    assert not intake.admit("fox", SamplingParams(n=2)).hides_logprobs


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logits", "processed_logits"])
def test_what_compares_log_probabilities_is_refused_where_there_are_none(tokenizer, mode):
    intake = make(tokenizer, logprobs_mode=mode)
    with pytest.raises(InvalidRequestError, match="--logprobs-mode raw_logprobs") as caught:
        intake.admit("fox", BeamSearchParams(beam_width=2))
    assert caught.value.param == "use_beam_search"
    params = SamplingParams(best_of=2)
    if mode == "processed_logprobs":
        assert len(intake.admit("fox", params).requests) == 2
        return
    with pytest.raises(InvalidRequestError, match=f"reports {mode}") as caught:
        intake.admit("fox", params)
    assert caught.value.param == "best_of"


@pytest.mark.parametrize("priority", [1, -1])
def test_a_priority_that_is_not_used_is_refused_with_the_way_out(intake, priority):
    with pytest.raises(InvalidRequestError, match="--scheduling-policy priority") as caught:
        intake.admit("fox", SamplingParams(), priority=priority)
    assert caught.value.param == "priority"


@pytest.mark.parametrize("priority", [0, -(2**31), 2**31 - 1])
def test_a_priority_reaches_the_engine_where_it_is_read(tokenizer, priority):
    intake = make(tokenizer, has_priorities=True)
    requests = intake.admit("fox", SamplingParams(n=2), priority=priority).requests
    assert [request.priority for request in requests] == [priority] * 2


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.0, True, "1", None, 10**400])
def test_a_priority_that_is_none_is_refused(tokenizer, priority):
    with pytest.raises(InvalidRequestError, match="whole number from -2147483648") as caught:
        make(tokenizer, has_priorities=True).admit("fox", SamplingParams(), priority=priority)
    assert caught.value.param == "priority"


@pytest.mark.parametrize("salt", ["a", "tenant 7", "ünïcödé-漢字", "x" * 128, "é" * 128])
def test_a_salt_reaches_the_engine(intake, salt):
    prompt = {"prompt": "fox", "cache_salt": salt}
    assert intake.admit(prompt, SamplingParams()).requests[0].cache_salt == salt


@pytest.mark.parametrize(
    "salt",
    ["", "x" * 129, "a\nb", "\x00", "a\x7f", "\ud800", "\u200b", "\u2028", "\ue000", b"a", 7, True],
)
def test_an_odd_salt_is_refused_by_name(intake, salt):
    with pytest.raises(InvalidRequestError, match="1 to 128 printable") as caught:
        intake.admit({"prompt": "fox", "cache_salt": salt}, SamplingParams())
    assert caught.value.param == "cache_salt"


@pytest.mark.parametrize("timeout_s", [None, 1e-3, 5, 1e9])
def test_a_timeout_reaches_the_engine(intake, timeout_s):
    (request,) = intake.admit("fox", SamplingParams(), timeout_s=timeout_s).requests
    assert request.timeout_s == timeout_s
    assert request.arrival_s > 0


@pytest.mark.parametrize(
    "timeout_s", [0, -1, float("nan"), float("inf"), 2e9, 10**400, True, "1", [1]]
)
def test_a_timeout_that_is_none_is_refused(intake, timeout_s):
    with pytest.raises(InvalidRequestError, match="seconds greater than 0") as caught:
        intake.admit("fox", SamplingParams(), timeout_s=timeout_s)
    assert caught.value.param == "timeout_s"


def test_a_seed_is_kept_and_a_missing_one_is_fresh(intake):
    assert intake.admit("fox", SamplingParams(seed=7)).requests[0].seed == 7
    seeds = {intake.admit("fox", SamplingParams()).requests[0].seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed <= MAX_SEED for seed in seeds)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "empty"), ([], "empty"), ({"prompt": ""}, "empty"), ([-1], "-1"), ([10**6], "1000000"),
        ([1.5], "1.5"), ([True], "True"), ("\ud800", "Unicode"), (7, "int"), (None, "NoneType"),
        ({}, "prompt_token_ids"), ({"prompt": 7}, "int"), ({"prompt": "a", "image": 1}, "image"),
    ],
)  # fmt: skip
def test_a_prompt_that_is_none_is_refused(intake, prompt, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        intake.admit(prompt, SamplingParams())
    assert caught.value.param == "prompt"


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(tokenizer):
    intake = make(tokenizer, max_model_len=8)
    assert intake.admit([1] * 7, SamplingParams()).requests[0].max_tokens == 1
    with pytest.raises(PromptTooLongError, match=r"8 tokens.*8 tokens"):
        intake.admit([1] * 8, SamplingParams())
    with pytest.raises(PromptTooLongError, match=r"99 tokens.*8 tokens"):
        intake.admit([1] * 99, SamplingParams())


def test_the_length_is_checked_first_so_that_a_huge_prompt_is_not_scanned(tokenizer):
    with pytest.raises(PromptTooLongError):
        make(tokenizer, max_model_len=8).admit([99999] * 500, SamplingParams())


def test_a_text_that_is_far_too_long_is_refused_before_it_is_tokenized(tokenizer, monkeypatch):
    intake = make(tokenizer, max_model_len=8)
    longest = max(map(len, tokenizer.backend.vocabulary()))
    with pytest.raises(PromptTooLongError, match=r"the prompt has 9 tokens"):
        intake.encode("\x00" * 9)
    monkeypatch.setattr(tokenizer, "encode", None)
    with pytest.raises(PromptTooLongError, match=r"at least 8 tokens.*8 tokens"):
        intake.encode("\x00" * (7 * longest + 1))


def test_a_text_that_may_fit_is_not_measured(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "least_tokens", None)
    assert make(tokenizer, max_model_len=8).encode("fox").text == "fox"


def test_a_text_that_is_truncated_may_be_longer_than_the_model_takes(tokenizer):
    prompt = {"prompt": "a" * 10_000, "truncate_prompt_tokens": -1}
    assert len(make(tokenizer, max_model_len=8).encode(prompt).token_ids) == 7


@pytest.mark.parametrize(("asked", "given"), [(None, 60), (5, 5), (60, 60), (61, 60), (10**9, 60)])
def test_max_tokens_fits_the_model(tokenizer, asked, given):
    request = make(tokenizer).admit([1] * 4, SamplingParams(max_tokens=asked)).requests[0]
    assert request.max_tokens == given


def test_min_tokens_that_cannot_fit_are_refused(tokenizer):
    with pytest.raises(InvalidRequestError, match="room for 60"):
        make(tokenizer).admit([1] * 4, SamplingParams(min_tokens=61, max_tokens=None))


def test_end_of_text_stops_unless_it_is_ignored(tokenizer, intake):
    eos = tokenizer.eos_token_ids
    stops = intake.admit("fox", SamplingParams(stop_token_ids=[9, eos[0]])).requests[0]
    assert stops.stop_token_ids == (*eos, 9)
    ignored = intake.admit("fox", SamplingParams(stop_token_ids=[9], ignore_eos=True)).requests[0]
    assert ignored.stop_token_ids == (9,)
    with pytest.raises(InvalidRequestError) as caught:
        intake.admit("fox", SamplingParams(stop_token_ids=[10**6]))
    assert caught.value.param == "stop_token_ids"


def test_sampler_fields_are_resolved(tokenizer):
    intake = make(tokenizer, fields=FIELDS)
    params = SamplingParams(temperature=0.25, extra_args={"acme_bias": 1})
    resolved = intake.admit("fox", params).requests[0].params
    assert resolved.extra_args == {"acme_bias": 1.0, "acme_on": False}
    assert type(resolved.extra_args["acme_bias"]) is float
    assert resolved.temperature == resolved.sampler_fields["temperature"] == 0.25
    plain = make(tokenizer).admit("fox", SamplingParams(top_k=3)).requests[0].params
    assert (plain.extra_args, plain.sampler_fields["top_k"]) == ({}, 3)
    assert list(intake.extra_fields) == ["acme_bias", "acme_on"]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"acme_bias": 2}, "from -1 to 1"),
        ({"acme_bias": "much"}, "much"),
        ({"acme_on": 1}, "bool"),
        ({"acme_bais": 1}, "did you mean 'acme_bias'"),
        ({"temperature": 1}, "no request field 'temperature'"),
    ],
)
def test_a_wrong_field_is_refused_by_name(tokenizer, extra, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        make(tokenizer, fields=FIELDS).admit("fox", SamplingParams(extra_args=extra))
    assert caught.value.param == next(iter(extra))


def test_hooks_see_every_request(tokenizer):
    seen = []
    intake = make(tokenizer, hooks=[(ACME, lambda *, request: seen.append(request))])
    assert list(intake.admit("fox", SamplingParams(n=2)).requests) == seen


def test_a_plugin_can_refuse_a_request(tokenizer):
    def refuse(*, request):
        raise RequestError("not on Sundays", param="prompt")

    with pytest.raises(RequestError, match="not on Sundays"):
        make(tokenizer, hooks=[(ACME, refuse)]).admit("fox", SamplingParams())


def test_a_plugin_that_fails_is_named_without_its_traceback(tokenizer, caplog):
    def fail(*, request):
        raise KeyError("secret detail")

    with pytest.raises(RequestFailedError, match=r"acme \(acme-quire 1.0\)") as caught:
        make(tokenizer, hooks=[(ACME, fail)]).admit("fox", SamplingParams())
    assert "secret" not in str(caught.value)
    assert "secret detail" in caplog.text


def refuse(constraint):
    if constraint.regex == "bug":
        raise KeyError("secret")
    raise GrammarError("no")


@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        (StructuredOutputsParams(regex="x"), "structured_outputs"),
        (StructuredOutputsParams(calls=CallGrammar(())), "tools"),
    ],
)
def test_an_unsupported_constraint_is_refused_at_once(tokenizer, constraint, param):
    intake = make(tokenizer, check_grammar=refuse)
    for _ in range(2):
        with pytest.raises(GrammarError, match="no") as caught:
            intake.admit("fox", SamplingParams(structured_outputs=constraint))
        assert caught.value.param == param


def test_a_backend_that_fails_at_a_constraint_is_not_quoted(tokenizer, caplog):
    intake = make(tokenizer, check_grammar=refuse)
    constraint = StructuredOutputsParams(regex="bug")
    with pytest.raises(RequestFailedError) as caught:
        intake.admit("fox", SamplingParams(structured_outputs=constraint))
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


def test_the_constraint_of_a_batch_is_checked_once(tokenizer):
    checked = []
    intake = make(tokenizer, check_grammar=checked.append)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="x"))
    for _ in range(3):
        intake.admit("fox", params)
    assert checked == [params.structured_outputs]


@pytest.mark.parametrize("seed", [0, -1, 1, MAX_SEED, -MAX_SEED - 1])
def test_any_seed_is_kept(intake, seed):
    requests = intake.admit("fox", SamplingParams(seed=seed, n=2)).requests
    assert [request.seed for request in requests] == [seed, seed]


def test_ids_that_the_model_lacks_are_refused_from_text_too(tokenizer):
    ids = tokenizer.encode("fox")
    intake = make(tokenizer, vocab_size=max(ids))
    for prompt in ("fox", ids, {"prompt": "fox"}):
        with pytest.raises(InvalidRequestError, match=f"prompt holds {max(ids)}") as caught:
            intake.admit(prompt, SamplingParams())
        assert caught.value.param == "prompt"
    assert make(tokenizer, vocab_size=max(ids) + 1).admit("fox", SamplingParams())


@pytest.mark.parametrize(
    ("fields", "has_bos"),
    [
        ({}, True),
        ({"add_special_tokens": True}, True),
        ({"add_special_tokens": None}, True),
        ({"add_special_tokens": False}, False),
    ],
)
def test_text_begins_with_the_tokenizers_special_tokens_unless_disabled(tokenizer, fields, has_bos):
    bos = Tokenizer(tokenizer.backend, special_tokens=tokenizer.special_tokens, add_bos_token=True)
    prompt = {"prompt": "fox"} | fields
    ids = make(bos).encode(prompt).token_ids
    assert (ids[0] == tokenizer.backend.token_to_id("<|start|>")) is has_bos
    assert make(bos).encode("fox").token_ids[0] == tokenizer.backend.token_to_id("<|start|>")


def test_the_callers_list_stays_the_callers(intake):
    ids = [1, 2, 3]
    encoded = intake.encode(ids)
    ids.append(4)
    assert encoded.token_ids == [1, 2, 3]


def test_min_tokens_may_fill_the_room_and_no_more(tokenizer):
    intake = make(tokenizer)
    params = SamplingParams(min_tokens=60, max_tokens=None)
    assert intake.admit([1] * 4, params).requests[0].max_tokens == 60
    with pytest.raises(InvalidRequestError) as caught:
        intake.admit([1] * 5, params)
    assert caught.value.param == "min_tokens"


def test_each_constraint_is_checked_once(tokenizer):
    checked = []
    intake = make(tokenizer, check_grammar=checked.append)
    first, other = (
        SamplingParams(structured_outputs=StructuredOutputsParams(regex=text)) for text in "xy"
    )
    for params in (first, first, other, other, first):
        intake.admit("fox", params)
    assert [constraint.regex for constraint in checked] == ["x", "y"]


def test_a_constraint_that_was_refused_is_refused_again(tokenizer):
    intake = make(tokenizer, check_grammar=refuse)
    constraint = StructuredOutputsParams(regex="x")
    for _ in range(2):
        with pytest.raises(GrammarError):
            intake.admit("fox", SamplingParams(structured_outputs=constraint))


def test_a_check_beforehand_is_that_of_admission(tokenizer):
    checked = []
    intake = make(tokenizer, check_grammar=checked.append)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="x"))
    assert not intake.has_new_constraint(SamplingParams())
    intake.check_constraint(SamplingParams())
    assert intake.has_new_constraint(params)
    intake.check_constraint(params)
    assert not intake.has_new_constraint(params)
    intake.admit("fox", params)
    assert checked == [params.structured_outputs]
    with pytest.raises(GrammarError) as caught:
        make(tokenizer, check_grammar=refuse).check_constraint(params)
    assert caught.value.param == "structured_outputs"


def test_a_field_that_a_backend_blames_stays_blamed(tokenizer):
    def blame(constraint):
        raise GrammarError("no", param="tools[3]")

    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="x"))
    with pytest.raises(GrammarError) as caught:
        make(tokenizer, check_grammar=blame).admit("fox", params)
    assert caught.value.param == "tools[3]"


def test_an_adapter_a_salt_and_the_time_of_arrival_reach_every_request(intake):
    adapter = AdapterRef("pirate", "path")
    before_s = time.monotonic()
    admission = intake.admit(
        {"prompt": "fox", "cache_salt": "s"}, SamplingParams(n=2), adapter=adapter, timeout_s=5
    )
    assert admission.prompt.text == "fox"
    for child, request in enumerate(admission.requests):
        assert (request.adapter, request.cache_salt, request.timeout_s) == (adapter, "s", 5)
        assert before_s <= request.arrival_s <= time.monotonic()
        assert request.request_id == f"{admission.request_id}-{child}"


def test_an_encoded_prompt_is_not_encoded_again(intake):
    encoded = EncodedPrompt("shown", [1, 2], "salt")
    admission = intake.admit(encoded, SamplingParams())
    assert admission.prompt is encoded
    assert (admission.requests[0].token_ids, admission.requests[0].cache_salt) == ([1, 2], "salt")


def test_a_field_of_a_sampler_is_checked_wherever_it_comes_from(tokenizer):
    fields = (RequestField("temperature", float, 1.0, 0.0, 1.5),)
    with pytest.raises(InvalidRequestError, match=r"from 0 to 1\.5") as caught:
        make(tokenizer, fields=fields).admit("fox", SamplingParams(temperature=2.0))
    assert caught.value.param == "temperature"
    wide = make(tokenizer, fields=(RequestField("temperature", float, 1.0, 0.0, 100.0),))
    assert wide.admit("fox", SamplingParams(temperature=2)).requests[0].params.temperature == 2.0


@pytest.mark.parametrize(
    "field",
    [
        RequestField("temperature", float, 1.0, 0.5),
        RequestField("top_k", int, 0, -1, 9),
        RequestField("min_p", bool, False),
        RequestField("min_tokens", int, 0, 3),
        RequestField("seed", int, 0),
    ],
)
def test_limits_of_a_sampler_that_are_narrower_than_the_parameters_are_checked(tokenizer, field):
    params = SamplingParams(temperature=0.1, top_k=10, min_p=0.5)
    with pytest.raises(InvalidRequestError, match=f"{field.name} must be a") as caught:
        make(tokenizer, fields=(field,)).admit("fox", params)
    assert caught.value.param == field.name


@pytest.mark.parametrize("error", [KeyError("secret"), ValueError("secret"), OSError("secret")])
def test_a_hook_that_fails_in_any_way_is_named(tokenizer, error):
    def fail(*, request):
        raise error

    with pytest.raises(RequestFailedError, match="plugin acme") as caught:
        make(tokenizer, hooks=[(ACME, fail)]).admit("fox", SamplingParams())
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("given", ["text", "ids"])
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, slice(-2, None)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, slice(-2, None)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, slice(0, 2)),
        ({"truncate_prompt_tokens": 2**31 - 1}, slice(None)),
    ],
)
def test_a_prompt_is_truncated_on_the_side_that_is_named(tokenizer, intake, given, options, kept):
    ids = tokenizer.encode("the quick brown fox")
    prompt = {"prompt": "the quick brown fox"} if given == "text" else {"prompt_token_ids": ids}
    encoded = intake.encode(prompt | options)
    assert encoded.token_ids == ids[kept]
    is_whole = encoded.token_ids == ids
    assert encoded.text == (prompt.get("prompt") if is_whole else None)


def test_a_prompt_longer_than_the_model_is_accepted_truncated(tokenizer, intake):
    ids = tokenizer.encode("fox " * 3000)
    prompt = {"prompt_token_ids": ids}
    with pytest.raises(PromptTooLongError):
        intake.encode(prompt)
    (request,) = intake.admit(prompt | {"truncate_prompt_tokens": -1}, SamplingParams()).requests
    assert request.token_ids == ids[-len(request.token_ids) :]
    assert request.max_tokens == 1


@pytest.mark.parametrize(
    "limit", [0, -2, 2**31, 2**63, True, False, 1.0, -0.0, float("nan"), float("inf"), "1", [1]]
)
def test_an_odd_number_of_tokens_to_keep_is_refused(intake, limit):
    with pytest.raises(InvalidRequestError, match="whole number from 1") as caught:
        intake.encode({"prompt": "fox", "truncate_prompt_tokens": limit})
    assert caught.value.param == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    "options",
    [{"truncate_prompt_tokens": 1, "truncation_side": side} for side in ("", "middle", 1, ["left"])]
    + [{"truncation_side": "left"}],
)
def test_an_odd_truncation_side_is_refused(intake, options):
    with pytest.raises(InvalidRequestError, match="truncation_side") as caught:
        intake.encode({"prompt": "fox"} | options)
    assert caught.value.param == "truncation_side"


def test_texts_of_tokens_reach_the_engine_as_tokens_and_token_ids_are_checked(tokenizer):
    fields = (
        RequestField("breakers", TokenTexts(2), ["the fox"]),
        RequestField("banned", TokenSet(), []),
    )
    intake = make(tokenizer, fields=fields)
    ids = tokenizer.encode("the fox", add_special_tokens=False)
    assert intake.admit("fox", SamplingParams()).requests[0].params.extra_args == {
        "breakers": [ids],
        "banned": [],
    }
    with pytest.raises(InvalidRequestError, match=r"banned\[0\] must be an int from 0") as caught:
        intake.admit("fox", SamplingParams(extra_args={"banned": [tokenizer.vocab_size]}))
    assert caught.value.param == "banned"


def test_an_unknown_field_says_which_step_would_serve_it(tokenizer):
    offered = {
        "dry_multiplier": "the sampler step 'dry' of x reads it: start with --samplers dry",
        "top_k": "the sampler step 'gumbel' of x reads it: start with --samplers gumbel",
    }
    intake = make(tokenizer, fields=FIELDS, offered_fields=offered)
    for name, hint in (
        ("dry_multiplier", "start with --samplers dry"),
        ("dry_multiplyer", "did you mean 'dry_multiplier'"),
        ("presence_penalty", r"SamplingParams\(presence_penalty=\.\.\.\)"),
        ("top_k", r"it is a parameter: SamplingParams\(top_k=\.\.\.\)"),
    ):
        with pytest.raises(InvalidRequestError, match=hint) as caught:
            intake.admit("fox", SamplingParams(extra_args={name: 0.5}))
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 0.5), ("frequency_penalty", -1), ("repetition_penalty", 1.1),
        ("logit_bias", {1: 2.0}), ("allowed_token_ids", [1]), ("bad_words", ["fox"]),
    ],
)  # fmt: skip
def test_a_parameter_that_no_sampler_in_use_reads_is_refused(tokenizer, name, value):
    with pytest.raises(InvalidRequestError, match=f"{name} is read by none") as caught:
        make(tokenizer).admit("fox", SamplingParams(**{name: value}))
    assert caught.value.param == name
