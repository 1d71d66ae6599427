import msgspec
import pytest
from engine_parts import EOS, make_message, make_request

from quire.engine.request import Request
from quire.messages import SlotAssignment


def test_one_token_is_next_whether_it_is_known_or_expected():
    request = make_request("a", prompt=[1, 2, 3])
    assert (request.num_pending_tokens, request.num_expected_tokens) == (3, 0)
    request.num_computed_tokens = 3  # a launched step samples the fourth token
    assert (request.num_pending_tokens, request.num_expected_tokens) == (0, 1)
    request.append([7])
    assert (request.num_pending_tokens, request.num_expected_tokens) == (1, 0)


def test_the_last_generated_token_is_never_computed():
    request = make_request("a", prompt=[1, 2, 3], max_tokens=4)
    assert (request.max_total_tokens, request.last_computed) == (7, 6)


@pytest.mark.parametrize(
    ("sampled", "taken", "reason", "stop_reason"),
    [
        ([5, 6], [5, 6], None, None),
        ([5, EOS, 7], [5, EOS], "stop", None),
        ([5, 9, 7], [5, 9], "stop", 9),
        ([5, 6, 7, 8, 5], [5, 6, 7, 8], "length", None),
        ([5, 6, 7, 9], [5, 6, 7, 9], "stop", 9),
    ],
)
def test_what_comes_behind_the_end_is_left_out(sampled, taken, reason, stop_reason):
    request = make_request("a", prompt=[1], max_tokens=4, stop_token_ids=(9,))
    assert request.append(sampled) == (taken, reason, stop_reason)
    assert request.token_ids == [1, *taken]


@pytest.mark.parametrize(
    ("sampled", "min_tokens", "found"),
    [
        ([5, 6, 5, 6, 5, 6], 0, 6), ([7, 5, 5, 5], 0, 4), ([5, 6, 7, 5, 6, 7, 5, 6, 7, 5], 0, None),
        ([5, 6, 5, 6, 5], 0, None), ([1, 1, 5], 0, None), ([5, 5, 5, 8, 5, 5, 5], 5, 7),
    ],
)  # fmt: skip
def test_a_pattern_that_repeats_ends_the_completion(sampled, min_tokens, found):
    pattern = {"max_pattern_size": 2, "min_count": 3}
    request = make_request(
        "a", prompt=[1], max_tokens=20, min_tokens=min_tokens, repetition_detection=pattern
    )
    taken, reason, stop_reason = request.append(sampled)
    expected = (sampled, None) if found is None else (sampled[:found], "repetition")
    assert (taken, reason, stop_reason) == (*expected, None)


def test_only_patterns_of_the_given_sizes_count():
    pattern = {"max_pattern_size": 3, "min_pattern_size": 3, "min_count": 2}
    request = make_request("a", prompt=[1], max_tokens=20, repetition_detection=pattern)
    assert request.append([5, 5, 5, 5, 5])[1] is None
    assert request.append([5])[1] == "repetition"


def test_a_stop_token_within_min_tokens_is_no_end():
    request = make_request("a", prompt=[1], max_tokens=9, min_tokens=2)
    assert request.append([EOS, EOS])[1] is None
    assert request.append([EOS])[1] == "stop"


def test_a_preemption_forgets_what_is_computed_and_keeps_the_tokens():
    request = make_request("a", prompt=[1, 2])
    request.append([7])
    request.num_computed_tokens = 2
    request.draft_token_ids = [8]
    request.reset_progress()
    assert request.token_ids == [1, 2, 7]
    assert (request.num_computed_tokens, request.draft_token_ids) == (0, [])
    assert request.num_preemptions == 1


def test_a_request_without_a_slot_has_no_assignment():
    with pytest.raises(RuntimeError, match="request a has no slot"):
        make_request("a").assignment()


def test_an_assignment_is_a_copy():
    request = make_request("a", prompt=[1, 2])
    request.slot = 3
    given = request.assignment()
    request.append([7])
    request.block_ids[0].append(5)
    assert (given.slot, given.token_ids, given.block_ids) == (3, [1, 2], [[]])


def test_an_assignment_has_all_that_a_worker_needs():
    message = make_message(
        "a", prompt=[1, 2, 3], adapter="one", logprobs=2, prompt_logprobs=5, min_tokens=2,
        stop_token_ids=(9,),
    )  # fmt: skip
    params = msgspec.structs.replace(message.params, top_k=3, extra_args={"warmth": 0.5})
    message = msgspec.structs.replace(message, params=params, seed=77, child=4)
    request = Request(message, 2)
    request.append([7])
    request.slot, request.num_computed_tokens = 3, 2
    request.block_ids = [[5], [0, 6]]
    assert request.assignment() == SlotAssignment(
        slot=3,
        token_ids=[1, 2, 3, 7],
        num_computed_tokens=2,
        block_ids=[[5], [0, 6]],
        num_prompt_tokens=3,
        fields=params.sampler_fields,
        seed=77,
        child=4,
        num_logprobs=2,
        num_prompt_logprobs=5,
        min_tokens=2,
        stop_token_ids=(EOS, 9),
        adapter=message.adapter,
    )
    fields = request.assignment().fields
    assert (fields["top_k"], fields["warmth"], fields["temperature"]) == (3, 0.5, 1.0)


def test_a_preempted_request_may_be_kept_again_and_has_nothing_in_flight():
    request = make_request("a")
    request.is_cacheable, request.num_drafts_in_flight = False, 2
    request.reset_progress()
    assert (request.is_cacheable, request.num_drafts_in_flight) == (True, 0)


def test_one_that_looks_at_its_prompt_reads_nothing_even_where_it_asks_for_no_others():
    assert make_request("a").reads_cache
    assert not make_request("a", prompt_logprobs=1).reads_cache
    assert not make_request("a", prompt_logprobs=0).reads_cache
