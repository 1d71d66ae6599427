"""The load of a simulated cluster: conversations that grow, shared system prompts, lone prompts."""

from itertools import islice

from quire.cli.bench.cluster.cluster_load import FIRST_OWN_TOKEN, ClusterLoad, LoadGenerator

LOAD = ClusterLoad(num_requests=50, rate=10.0, num_system_prompts=4, system_len=20)


def first_conversations(count, seed=0, load=LOAD):
    generator = LoadGenerator(load, seed)
    return generator, list(islice(generator.conversations(), count))


def test_equal_seeds_make_equal_conversations():
    (_, first), (_, second), (_, other) = (first_conversations(20, seed) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_the_next_message_follows_the_completion():
    generator, conversations = first_conversations(20)
    conversation = next(each for _, each in conversations if each.turns_left > 1)
    request = generator.next_request(conversation)
    assert generator.answer(conversation, request) > 0
    later = generator.next_request(conversation)
    size = len(request.token_ids)
    assert later.token_ids[:size] == request.token_ids
    assert len(later.token_ids) > size + request.max_tokens
    assert later.token_ids[size : size + request.max_tokens] == [7] * request.max_tokens


def test_so_many_requests_are_made_and_no_more():
    generator, conversations = first_conversations(60)
    requests = [generator.next_request(conversation) for _, conversation in conversations]
    assert [request is None for request in requests] == [False] * 50 + [True] * 10


def test_some_prompts_share_a_system_prompt_and_some_share_nothing():
    _, conversations = first_conversations(400)
    lone = [each for _, each in conversations if each.token_ids[0] >= FIRST_OWN_TOKEN]
    assert 0.2 < len(lone) / 400 < 0.4
    assert all(each.turns_left == 1 for each in lone)
    systems = [each.token_ids[0] // 20 for _, each in conversations if each not in lone]
    assert sorted(set(systems)) == [0, 1, 2, 3]
    assert systems.count(0) > systems.count(3)


def test_in_a_burst_conversations_of_one_system_prompt_arrive_more_often():
    load = ClusterLoad(num_requests=50, rate=300.0, lone_share=0.0, burst_rate=4.0)
    _, conversations = first_conversations(3000, load=load)
    times = [arrival_s for arrival_s, _ in conversations if arrival_s < 20]
    in_burst = [arrival_s for arrival_s in times if arrival_s >= 18]
    assert 2.5 < (len(in_burst) / 2) / ((len(times) - len(in_burst)) / 18) < 6
    burst = {each.token_ids[0] for arrival_s, each in conversations if 18.1 <= arrival_s < 19.9}
    assert len(burst) == 1
