import msgspec
import pytest
from engine_parts import make_core, make_message, make_request, run_to_end

from quire.engine.request import Status
from quire.engine.scheduling.guarded_policy import GuardedPolicy
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.waiting_queue import WaitingQueue
from quire_scheduling_policies.fcfs import FirstComeFirstServed

NAMES = [bytes([i]) for i in range(10)]


def leader_of(sharing, names=NAMES[:4]):
    leader = make_request("leader")
    sharing.promise(leader, names)
    return leader


@pytest.fixture
def waiting():
    return WaitingQueue(GuardedPolicy(FirstComeFirstServed()))


@pytest.fixture
def sharing(waiting):
    return PromptSharing(waiting)


def test_a_request_that_lacks_promised_blocks_follows_to_the_last_common_block(sharing, waiting):
    leader, follower = leader_of(sharing), make_request("follower")
    assert sharing.follow(follower, [*NAMES[:4], NAMES[8]])
    assert (follower.leader, follower.awaited_hash) == (leader, NAMES[3])
    sharing.release(leader, lambda name: name in NAMES[:3])
    assert list(waiting) == []
    sharing.release(leader, lambda name: name in NAMES[:4])
    assert list(waiting) == [follower]
    assert follower.leader is None


def test_half_is_enough_and_less_is_not(sharing):
    leader_of(sharing, NAMES[:2])
    assert sharing.follow(make_request("half"), [*NAMES[:2], *NAMES[5:7]])
    assert not sharing.follow(make_request("less"), [*NAMES[:2], *NAMES[5:8]])
    assert not sharing.follow(make_request("other"), NAMES[5:])


def test_followers_are_free_when_their_leader_goes(sharing, waiting):
    leader, follower = leader_of(sharing), make_request("follower")
    follower.status = Status.WAITING_FOR_PREFIX
    sharing.follow(follower, NAMES[:4])
    sharing.withdraw(leader)
    assert list(waiting) == [follower]
    assert follower.status is Status.WAITING
    assert (follower.leader, follower.awaited_hash) == (None, None)
    assert (leader.followers, leader.promised_hashes) == ([], [])
    assert not sharing.follow(make_request("late"), NAMES[:4]), "nothing is promised any more"


def test_a_follower_that_leaves_is_called_no_more(sharing, waiting):
    leader, follower = leader_of(sharing), make_request("follower")
    sharing.follow(follower, NAMES[:4])
    sharing.unfollow(follower)
    assert (follower.leader, follower.awaited_hash, leader.followers) == (None, None, [])
    sharing.withdraw(leader)
    assert list(waiting) == []
    sharing.unfollow(follower)  # without a leader nothing changes


def test_only_the_blocks_of_one_leader_count(sharing):
    leader_of(sharing, NAMES[:2])
    sharing.promise(make_request("second"), NAMES[2:6])
    assert not sharing.follow(make_request("follower"), NAMES[:6]), "two of six"


def test_the_first_promise_of_a_block_counts(sharing):
    leader = leader_of(sharing)
    second = make_request("second")
    sharing.promise(second, NAMES[2:6])
    assert second.promised_hashes == NAMES[4:6]
    sharing.withdraw(second)
    assert sharing.follow(make_request("follower"), NAMES[:4])
    assert len(leader.followers) == 1


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("budget", [8, 2048])
def test_eight_completions_of_one_prompt_compute_it_once(async_scheduling, budget):
    core, executor, _ = make_core(
        async_scheduling=async_scheduling, enable_prefix_caching=True, max_num_batched_tokens=budget
    )
    for child in range(8):
        message = make_message(f"r{child}", prompt=range(100, 133), max_tokens=5)
        core.add(msgspec.structs.replace(message, child=child))
    completions = run_to_end(core)
    assert all(completions[f"r{child}"] == list(range(133, 138)) for child in range(8))
    num_completion_tokens = 8 * 4  # the last generated token is not computed
    num_last_blocks = 7  # of one token each: 32 of 33 are shared
    assert sum(executor.num_tokens_per_step) == 33 + num_last_blocks + num_completion_tokens
    assert core.stats().num_prefix_hits == 7 * 32


def test_followers_compute_for_themselves_when_their_leader_is_aborted():
    core, _, _ = make_core(enable_prefix_caching=True, max_num_batched_tokens=8)
    for name in "ab":
        core.add(make_message(name, prompt=range(100, 140), max_tokens=3))
    core.step()
    core.step()  # what the first step left of its budget was nothing: now the second is looked at
    assert core.scheduler.requests["b"].status is Status.WAITING_FOR_PREFIX
    core.abort(["a"])
    assert run_to_end(core) == {"b": [140, 141, 142]}


def following_core(**message):
    """An engine in which b follows a."""
    core, executor, _ = make_core(enable_prefix_caching=True, max_num_batched_tokens=8)
    for name in "ab":
        core.add(make_message(name, prompt=range(100, 140), max_tokens=3))
    core.step()
    core.step()
    return core, executor


def test_an_aborted_follower_is_not_computed():
    core, executor = following_core()
    follower = core.scheduler.requests["b"]
    core.abort(["b"])
    assert core.scheduler.requests["a"].followers == []
    assert run_to_end(core) == {"a": [140, 141, 142]}
    assert follower.status is Status.FINISHED
    assert sum(executor.num_tokens_per_step) == 40 + 2
    assert core.scheduler.kv.pool.num_used == 0


def test_a_reset_of_the_prefix_cache_lets_followers_compute_for_themselves():
    core, _ = following_core()
    core.scheduler.reset_prefix_cache()
    assert core.scheduler.requests["b"].status is Status.WAITING
    assert list(core.scheduler.waiting) == [core.scheduler.requests["b"]]
    assert run_to_end(core) == {"a": [140, 141, 142], "b": [140, 141, 142]}


def test_a_request_for_prompt_logprobs_follows_no_leader():
    core, executor, _ = make_core(enable_prefix_caching=True, max_num_batched_tokens=8)
    core.add(make_message("a", prompt=range(100, 140), max_tokens=3))
    core.step()
    core.add(make_message("b", prompt=range(100, 140), max_tokens=3, prompt_logprobs=1))
    core.step()
    assert core.scheduler.requests["b"].status is Status.RUNNING
    run_to_end(core)
    assert sum(executor.num_tokens_per_step) == 2 * (40 + 2)


def test_a_request_with_a_partial_hit_promises_the_rest():
    core, _, _ = make_core(enable_prefix_caching=True, max_num_batched_tokens=8)
    core.add(make_message("known", prompt=range(100, 109), max_tokens=1))
    run_to_end(core)
    for name in "ab":
        core.add(make_message(name, prompt=range(100, 140), max_tokens=3))
    core.step()
    core.step()
    leader, follower = core.scheduler.requests["a"], core.scheduler.requests["b"]
    assert leader.promised_hashes == leader.hashes[3:10], "two of ten blocks were found"
    assert follower.status is Status.WAITING_FOR_PREFIX
    assert follower.leader is leader
    assert run_to_end(core) == {"a": [140, 141, 142], "b": [140, 141, 142]}
    assert follower.num_cached_tokens == 36


def test_a_leader_keeps_its_promises_until_its_prompt_is_computed_and_no_longer():
    core, _, _ = make_core(enable_prefix_caching=True, max_num_batched_tokens=8)
    core.add(make_message("a", prompt=range(100, 128), max_tokens=3))
    request = core.scheduler.requests["a"]
    for _ in range(3):
        core.step()  # 24 of 28 tokens
        assert request.promised_hashes == request.hashes[1:7]
    core.step()
    assert request.promised_hashes == []
    assert not core.scheduler._sharing._leaders


def test_a_follower_begins_when_its_block_is_computed_and_not_when_the_prompt_is():
    core, _, _ = make_core(enable_prefix_caching=True, max_num_batched_tokens=8)
    core.add(make_message("a", prompt=range(100, 140), max_tokens=3))
    core.step()
    core.add(make_message("b", prompt=[*range(100, 112), 7, 8, 9], max_tokens=3))
    core.step()
    assert core.scheduler.requests["b"].status is Status.WAITING, "12 tokens of a are computed"
    core.step()
    assert core.scheduler.requests["b"].status is Status.RUNNING
    assert core.scheduler.requests["b"].num_cached_tokens == 12
