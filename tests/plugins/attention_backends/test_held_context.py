"""What is held between steps is what a fresh gather would find, whatever happens in between."""

import random

import pytest
import torch

from quire.testing.attention_scene import AttentionScene, SceneSizes
from quire_attention_backends.torch_sdpa import TorchSDPABackend


def check(pairs):
    for answer, truth in pairs:
        torch.testing.assert_close(answer, truth.to(answer.dtype), rtol=1e-4, atol=1e-5)


def decode(scene, numbers):
    check(scene.step([(number, 1) for number in numbers]))


def started(lengths, room=200):
    scene = AttentionScene(TorchSDPABackend, SceneSizes())
    numbers = [scene.add(length + room) for length in lengths]
    check(scene.step(list(zip(numbers, lengths, strict=True))))
    return scene, numbers


def test_a_hundred_steps_grow_past_the_room():
    scene, numbers = started([30, 17, 25])
    for _ in range(100):
        decode(scene, numbers)
    assert scene.backend._held._tenancy.num_steps > 0


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
    scene, numbers = started([20, 31, 9, 16, 33], room=80)
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
    held = scene.backend._held
    for copy in held._copies.values():
        copy.num_steps -= 1  # as if it had not taken part
    decode(scene, numbers)


def test_large_or_very_uneven_batches_are_not_held():
    scene, numbers = started([3, 500, 8])
    decode(scene, numbers)
    assert scene.backend._held._tenancy is None
