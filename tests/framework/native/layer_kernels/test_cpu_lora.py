"""Checks of the arguments of the library; its results are tested with the layer."""

import pytest
import torch
from native_libraries import failing_library

from quire.native.availability import native_unavailable_reason
from quire.native.layer_kernels import cpu_lora
from quire.native.layer_kernels.cpu_lora import AddLoRA

pytestmark = pytest.mark.skipif(
    native_unavailable_reason() is not None, reason="no compiled kernels here"
)
A, B = torch.ones(2, 4, 3), torch.ones(2, 4, 5)


@pytest.mark.parametrize(
    ("a", "b"), [(A.double(), B), (A, B.bfloat16()), (A.mT, B), (A, B.mT)], ids=str
)
def test_only_stacks_that_can_be_read_are_bound(a, b):
    with pytest.raises(ValueError, match="contiguous float32 on the CPU"):
        AddLoRA(a, b, [5])


@pytest.mark.parametrize(
    ("out", "x", "index", "message"),
    [
        (torch.zeros(2, 5), torch.ones(2, 4), torch.zeros(2).long(), r"float32 \[\.\.\., 3\], got"),
        (
            torch.zeros(2, 5),
            torch.ones(2, 3).double(),
            torch.zeros(2).long(),
            r"float32 \[\.\.\., 3\], got",
        ),
        (torch.zeros(2, 6), torch.ones(2, 3), torch.zeros(2).long(), r"float32 \[\.\.\., 5\], got"),
        (
            torch.zeros(2, 5),
            torch.ones(2, 3),
            torch.zeros(2).int(),
            "int32 with 2 elements do not match",
        ),
        (
            torch.zeros(2, 5),
            torch.ones(2, 3),
            torch.zeros(3).long(),
            "int64 with 3 elements do not match",
        ),
        (torch.zeros(5, 2).mT, torch.ones(2, 3), torch.zeros(2).long(), "must be contiguous"),
    ],
)
def test_what_does_not_fit_the_stacks_is_refused(out, x, index, message):
    with pytest.raises(ValueError, match=message):
        AddLoRA(A, B, [5])(out, x, index)


def test_without_a_compiler_they_are_not_available(monkeypatch, tmp_path):
    assert cpu_lora.LIBRARY.is_available()
    monkeypatch.setattr(cpu_lora, "LIBRARY", failing_library(tmp_path))
    assert not cpu_lora.LIBRARY.is_available()
