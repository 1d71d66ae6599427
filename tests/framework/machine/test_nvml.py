"""Memory and compute capability of the first visible GPU, without torch."""

import ctypes

import pytest
from gpu_driver import build_driver

from quire.machine.nvml import (
    DeviceMemory,
    cuda_compute_capability,
    cuda_device_count,
    cuda_memory,
    visible_device_ids,
    visible_devices,
)

GIB = 2**30


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return build_driver(tmp_path_factory.mktemp("driver"))


def test_without_a_driver_nothing_is_known():
    assert cuda_memory("libno-such-driver.so.1") is None
    assert cuda_compute_capability("libno-such-driver.so.1") is None
    assert cuda_device_count("libno-such-driver.so.1") is None


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
    ("visible", "count"),
    [(None, 2), ("0,1", 2), ("1", 1), ("0,GPU-1", 2), ("", 0), ("-1", 0), ("0,5,1", 1), ("5,0", 0)],
)
def test_visible_devices_are_counted_up_to_one_that_is_not_there(
    driver, monkeypatch, visible, count
):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cuda_device_count(driver) == count


@pytest.mark.parametrize(
    ("visible", "devices"),
    [(None, ["0", "1"]), ("1", ["1"]), (" 1, GPU-1 ", ["1", "GPU-1"]), ("", []), ("7,1", [])],
)
def test_visible_devices_are_named_in_their_order(driver, monkeypatch, visible, devices):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_devices(driver) == devices


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        (None, ["GPU-0", "GPU-1"]),
        ("1,0", ["GPU-1", "GPU-0"]),
        (" 1 ", ["GPU-1"]),
        ("GPU-1,0", ["GPU-1", "GPU-0"]),
        ("0,7,1", ["GPU-0"]),
        ("", []),
    ],
)
def test_visible_devices_have_ids_that_no_numbering_changes(driver, monkeypatch, visible, ids):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_device_ids(driver) == ids


def test_devices_have_no_ids_without_a_driver_or_if_it_does_not_say(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_device_ids("libno-such-driver.so.1") is None
    assert visible_device_ids(build_driver(tmp_path, answer=3)) is None


def test_without_a_driver_no_device_is_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices("libno-such-driver.so.1") == []


def test_each_visible_device_has_its_own_memory(driver, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [cuda_memory(driver, index).free for index in range(2)] == [70 * GIB, 7 * GIB]
    assert cuda_memory(driver, 2) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 0")
    assert [cuda_memory(driver, index).free for index in range(2)] == [7 * GIB, 70 * GIB]
    assert cuda_memory(driver, 2) is None


@pytest.mark.parametrize("fault", [{"init": 9}, {"answer": 3}], ids=str)
def test_a_driver_that_fails_says_nothing(tmp_path, monkeypatch, fault):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = build_driver(tmp_path, **fault)
    assert cuda_memory(library) is None
    assert cuda_compute_capability(library) is None
    assert cuda_device_count(library) == (None if "init" in fault else 2)
    assert len(visible_devices(library)) == (0 if "init" in fault else 2)


@pytest.mark.parametrize("visible", ["0", "5"])
def test_the_library_is_closed_as_often_as_it_was_opened(driver, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cuda_memory(driver)
    cuda_compute_capability(driver)
    assert ctypes.CDLL(driver).num_open() == 0
