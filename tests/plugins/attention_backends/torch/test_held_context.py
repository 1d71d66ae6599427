"""The held context always equals a fresh gather, for all sequences of steps."""

import random

import pytest
import torch

from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.torch import held_context
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend


def check(pairs):
    for output, expected in pairs:
        torch.testing.assert_close(output, expected.to(output.dtype), rtol=1e-4, atol=1e-5)


def decode(scene, numbers):
    check(scene.step([(number, 1) for number in numbers]))


def started(lengths, num_more=200, **sizes):
    scene = AttentionScene(TorchSDPABackend, SceneSizes(**sizes))
    numbers = [scene.add(length + num_more) for length in lengths]
    check(scene.step(list(zip(numbers, lengths, strict=True))))
    return scene, numbers


@pytest.mark.parametrize("block_size", [16, 128])  # a new block makes the backend gather again
def test_a_hundred_steps_exceed_the_capacity(block_size):
    scene, numbers = started([30, 17, 25], num_more=97, block_size=block_size)
    for _ in range(97):
        decode(scene, numbers)
    assert scene.backend._held._held_batch.num_steps > 0


def test_the_second_step_appends():
    scene, numbers = started([30, 17])
    decode(scene, numbers)
    copies = list(scene.backend._held._copies.values())
    decode(scene, numbers)
    assert list(scene.backend._held._copies.values()) == copies
    assert copies[0].num_steps == 1


@pytest.mark.parametrize("seed", range(8))
def test_requests_that_join_leave_and_change_order_are_seen(seed):
    draw = random.Random(seed)
    scene, numbers = started([20, 31, 9, 16, 33], num_more=80)
    for _ in range(40):
        event = draw.random()
        if event < 0.6:
            decode(scene, numbers[:3])
        elif event < 0.75:
            decode(scene, draw.sample(numbers, draw.randint(1, 5)))
        elif event < 0.9:
            check(scene.step([(numbers[0], draw.randint(1, 3)), (numbers[3], 1)]))
        else:
            numbers = draw.sample(numbers, len(numbers))


def test_a_layer_that_missed_a_step_gathers_again():
    scene, numbers = started([12, 15])
    decode(scene, numbers)
    plan = [(number, 1) for number in numbers]
    layout, (_, k, v) = scene.layout(plan, Padding()), scene.inputs(plan)
    scene.backend.prepare(layout)  # the layer takes no part, but the tokens are written
    size = scene.sizes.block_size
    for number, slot, key, value in zip(numbers, layout.slot_mapping, k, v, strict=True):
        scene.kv_cache[slot // size, :, :, slot % size] = torch.stack((key, value))
        scene.requests[number].num_computed += 1
    decode(scene, numbers)
    assert scene.backend._held._held_batch.num_steps == 2


def test_a_layer_that_reads_the_cache_of_another_in_the_same_step_does_not_gather():
    scene, numbers = started([12, 15])
    decode(scene, numbers)
    plan = [(number, 1) for number in numbers]
    layout, (q, k, v) = scene.layout(plan, Padding()), scene.inputs(plan)
    metadata = scene.backend.prepare(layout)
    rest = (k, v, scene.kv_cache, metadata, scene.params)
    first = scene.backend.forward(q, *rest)
    (copy,) = scene.backend._held._copies.values()
    copy.held.context = None
    torch.testing.assert_close(scene.backend.forward(q, *rest), first)
    assert copy.held.context is None


def test_very_uneven_batches_are_not_held():
    scene, numbers = started([3, 500, 8])
    decode(scene, numbers)
    assert scene.backend._held._held_batch is None


@pytest.mark.parametrize("extra_bytes", [0, -1])
def test_a_copy_is_as_large_as_it_may_be_and_no_larger(extra_bytes, monkeypatch):
    num_bytes = 2 * (31 + held_context.GROWTH_TOKENS) * 2 * 2 * 64 * 4
    monkeypatch.setattr(held_context, "MAX_LAYER_BYTES", num_bytes + extra_bytes)
    scene, numbers = started([30, 28])
    decode(scene, numbers)
    assert (scene.backend._held._held_batch is not None) == (extra_bytes == 0)


def test_a_step_with_tokens_of_padding_is_not_held():
    scene, numbers = started([30, 28])
    check(scene.step([(number, 1) for number in numbers], Padding(0, 2)))
    assert scene.backend._held._held_batch is None


def test_a_table_that_another_takes_over_after_two_steps_is_not_mistaken_for_the_last_one():
    """The buffer of the table is reused, as in a model runner."""
    scene, (one, other) = started([30, 32])
    table = torch.zeros(1, 3, dtype=torch.int32)
    steps_held = []
    for number in (one, one, other):
        layout = scene.layout([(number, 1)], Padding())
        table.copy_(torch.nn.functional.pad(layout.block_table, (0, 3))[:, :3])
        layout.block_table = table
        steps_held.append(scene.backend.prepare(layout).held_batch.num_steps)
        scene.requests[number].num_computed += 1
    assert steps_held == [0, 1, 0]


def test_a_request_that_takes_over_row_and_blocks_reads_its_own():
    # One request ends with two full blocks; the next has them as its prefix and computes one token.
    # The backend cannot tell them apart, and the held context is right for both.
    scene, (first,) = started([30])
    decode(scene, [first])
    decode(scene, [first])
    size = scene.sizes.block_size
    assert scene.requests[first].num_computed == 2 * size
    second = scene.add_with_prefix_of(first, 2, 2 * size + 40)
    scene.end(first)
    for _ in range(3):
        decode(scene, [second])


def test_a_tail_block_that_was_taken_over_is_read_anew():
    scene, (first,) = started([20])
    decode(scene, [first])
    tail = scene.requests[first].block_ids[-1]
    second = scene.add_with_prefix_of(first, 1, 60)
    scene.end(first)
    check(scene.step([(second, 5)]))
    assert scene.requests[second].block_ids[-1] == tail
    decode(scene, [second])  # 22 tokens, one more than the first request had, in the same blocks


def test_children_of_one_prompt_change_their_order():
    scene, (parent,) = started([32])
    children = [scene.add_with_prefix_of(parent, 2, 100) for _ in range(3)]
    scene.end(parent)
    for order in ([0, 1, 2], [0, 1, 2], [2, 0, 1], [2, 0, 1], [1, 0], [1, 0], [0, 1, 2]):
        decode(scene, [children[index] for index in order])


@pytest.mark.parametrize("seed", range(12))
def test_blocks_pass_from_request_to_request(seed):
    draw = random.Random(seed)
    scene = AttentionScene(TorchSDPABackend, SceneSizes(block_size=4))
    running = [scene.add(400)]
    check(scene.step([(running[0], 12)]))
    for _ in range(120):
        event = draw.random()
        if event < 0.7:
            decode(scene, running)
        elif event < 0.8 and len(running) < 5:
            donor = draw.choice(running)
            num_whole = scene.requests[donor].num_computed // 4
            running.append(scene.add_with_prefix_of(donor, draw.randint(0, num_whole), 400))
            check(scene.step([(running[-1], draw.choice([1, 1, 3]))]))
        elif event < 0.9 and len(running) > 1:
            scene.end(running.pop(draw.randrange(len(running))))
        else:
            draw.shuffle(running)


def test_what_was_written_from_outside_is_read():
    scene, (number,) = started([30])
    decode(scene, [number])
    request = scene.requests[number]
    request.rows[2][:16] *= 2
    scene.kv_cache[request.block_ids[0], 1] *= 2
    scene.backend.forget_context()
    decode(scene, [number])


def test_a_layout_whose_buffers_are_used_again_is_not_mistaken_for_the_last_one():
    scene, (one, other) = started([30, 30])
    table = torch.zeros(1, 3, dtype=torch.int32)
    for number in (one, other):  # the second has one token more, and other blocks
        scene.requests[number].num_computed = 30 + (number == other)
        layout = scene.layout([(number, 1)], Padding())
        table.copy_(torch.nn.functional.pad(layout.block_table, (0, 3))[:, :3])
        layout.block_table = table
        metadata = scene.backend.prepare(layout)
        assert metadata.held_batch.num_steps == 0


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn", "int8"])
def test_a_cache_of_another_type_is_not_held(kv_dtype):
    scene = AttentionScene(TorchSDPABackend, SceneSizes(kv_dtype=kv_dtype))
    scene.add(30)
    scene.step([(0, 28)])
    scene.step([(0, 1)])
    assert scene.backend._held._held_batch is None
