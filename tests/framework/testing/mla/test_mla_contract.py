"""MLA conformance kit: its own checks reject a broken backend."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from device_mla import DEVICE_MLA, DeviceMLA
from kit_checks import AskedCases, Check, checks, rejecting

from quire.testing.kv_backend import kv_backend_contract
from quire.testing.mla import mla_contract
from quire.testing.mla.mla_contract import MLABackendContract
from quire.testing.mla.mla_scene import MLAScene, MLASizes, reference_mla

SIZES = MLASizes(latent_dim=32, rope_dim=16)
KIT = (mla_contract,)
SIZES_WORK = Check("KVBackendContract._check_ragged", 1)
LAYOUT = Check("MLABackendContract.test_it_declares_the_layout", 1)
VIEWS = Check("MLABackendContract.test_a_layer_may_pass_views_of_larger_tensors", 1)


def contract(broken, declared=DEVICE_MLA):
    class Contract(MLABackendContract):
        backend_class = broken
        capabilities = declared

    return Contract()


class ForgetsTheRotatedKey(DeviceMLA):
    def forward(self, q_latent, q_rope, *rest):
        return super().forward(q_latent, 0 * q_rope, *rest)


class TakesHeadsForRows(DeviceMLA):
    """Reads queries as if they were contiguous."""

    def forward(self, q_latent, *rest):
        misread = q_latent.as_strided(q_latent.shape, torch.empty(q_latent.shape).stride())
        return super().forward(misread, *rest)


def test_a_right_backend_passes():
    contract(DeviceMLA).test_it_declares_the_layout()
    contract(DeviceMLA).test_a_layer_may_pass_views_of_larger_tensors()


def test_a_forgotten_key_is_noticed():
    run = partial(contract(ForgetsTheRotatedKey).test_the_declared_sizes_work, SIZES)
    assert SIZES_WORK in rejecting(run, kv_backend_contract)


def test_inputs_that_are_taken_for_contiguous_are_noticed():
    run = contract(TakesHeadsForRows).test_a_layer_may_pass_views_of_larger_tensors
    assert VIEWS in rejecting(run, *KIT)


@pytest.mark.parametrize("layouts", [{"kv", "mla"}, {"kv"}])
def test_another_layout_is_noticed(layouts):
    other = contract(DeviceMLA, replace(DEVICE_MLA, layouts=frozenset(layouts)))
    assert LAYOUT in rejecting(other.test_it_declares_the_layout, *KIT)


def test_every_check_of_the_kit_rejects_a_broken_backend():
    assert checks(*KIT) == {LAYOUT, VIEWS}


def cases_of(name, **capabilities):
    asked = AskedCases(name)
    contract(DeviceMLA, replace(DEVICE_MLA, **capabilities)).pytest_generate_tests(asked)
    return asked.cases


def test_sizes_are_tried_one_after_the_other():
    found = cases_of("sizes", block_sizes=None)
    assert found[0] == SIZES
    assert [(each.latent_dim, each.rope_dim) for each in found[1:3]] == [(64, 16), (128, 32)]
    assert [each.block_size for each in found[3:5]] == [1, 64]
    assert [each.num_heads for each in found[5:]] == [1, 20]
    assert str(found[0]) == "H4-C32-P16-S16"


def test_quantized_caches_are_not_tried():
    types = frozenset({"float32", "bfloat16", "int8"})
    assert len(cases_of("types", dtypes=types, kv_dtypes=types)) == 4


def test_the_reference_sees_no_later_token():
    rows = [torch.randn(3, *shape, dtype=torch.float64) for shape in SIZES.row_shapes]
    short = [tensor[:2] for tensor in rows]
    torch.testing.assert_close(reference_mla(*rows, 0.2)[:2], reference_mla(*short, 0.2))


def test_the_scene_compares_with_latent_attention():
    scene = MLAScene(DeviceMLA, SIZES)
    [(output, expected)] = scene.step([(scene.add(9), 9)])
    torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)
