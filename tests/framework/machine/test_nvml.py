"""Memory and compute capability of the first visible GPU, without torch."""

import ctypes

import pytest
from gpu_driver import build_driver

from quire.machine.nvml import (
    DeviceMemory,
    cuda_compute_capability,
    cuda_memory,
    visible_devices,
)

GIB = 2**30


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return build_driver(tmp_path_factory.mktemp("driver"))


def test_without_a_driver_nothing_is_known():
    assert cuda_memory("libno-such-driver.so.1") is None
    assert cuda_compute_capability("libno-such-driver.so.1") is None


@pytest.mark.parametrize(
    ("visible", "free", "capability"),
    [
        (None, 70 * GIB, 90),
        ("0", 70 * GIB, 90),
        ("1,0", 7 * GIB, 86),
        (" 1 ", 7 * GIB, 86),
        ("GPU-1", 7 * GIB, 86),
    ],
)
def test_the_first_visible_device_is_read(driver, monkeypatch, visible, free, capability):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cuda_memory(driver) == DeviceMemory(total=80 * GIB, free=free)
    assert cuda_compute_capability(driver) == capability


@pytest.mark.parametrize("visible", ["5", "GPU-9", "no such device", "-1", "", " ", ",0"])
def test_a_device_that_is_hidden_or_not_there_says_nothing(driver, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cuda_memory(driver) is None
    assert cuda_compute_capability(driver) is None


@pytest.mark.parametrize(
    ("visible", "devices"),
    [(None, ["0", "1"]), ("1", ["1"]), (" 3, GPU-1 ", ["3", "GPU-1"]), ("", [])],
)
def test_visible_devices_are_named_in_their_order(driver, monkeypatch, visible, devices):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_devices(driver) == devices


def test_without_a_driver_no_device_is_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices("libno-such-driver.so.1") == []


@pytest.mark.parametrize("fault", [{"init": 9}, {"answer": 3}], ids=str)
def test_a_driver_that_fails_says_nothing(tmp_path, monkeypatch, fault):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = build_driver(tmp_path, **fault)
    assert cuda_memory(library) is None
    assert cuda_compute_capability(library) is None
    assert visible_devices(library) == []


@pytest.mark.parametrize("visible", ["0", "5"])
def test_the_library_is_closed_as_often_as_it_was_opened(driver, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cuda_memory(driver)
    cuda_compute_capability(driver)
    assert ctypes.CDLL(driver).num_open() == 0
