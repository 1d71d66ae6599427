"""Calls of the CUDA driver, against a stub library that records the last launch."""

import ctypes
import shutil
import subprocess

import pytest

from quire.errors import PluginLoadError
from quire_attention_backends.cuda.cuda_driver import CudaDriver

SOURCE = r"""
#include <cstdint>
#include <cstring>

struct Launch {
    uint64_t function, stream, grid[3], block[3], shared_bytes;
    int64_t wide;
    float narrow;
};
static Launch launch;

extern "C" {
const Launch *last_launch() { return &launch; }

int cuModuleLoadData(void **module, const char *cubin) {
    if (std::memcmp(cubin, "\x7f" "ELF", 4)) return 200;
    *module = (void *)0x1122334455667788;
    return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    if (module != (void *)0x1122334455667788) return 400;
    if (std::strcmp(name, "paged_decode")) return 500;
    *function = (void *)0x7766554433221100;
    return 0;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    if (!x || extra) return 1;
    launch = {(uint64_t)function, (uint64_t)stream, {x, y, z}, {bx, by, bz}, shared, 0, 0};
    std::memcpy(&launch.wide, arguments[0], sizeof launch.wide + sizeof launch.narrow);
    return 0;
}

int cuGetErrorString(int status, const char **text) {
    *text = status == 200 ? "device kernel image is invalid" : status == 500 ? "named symbol not "
            "found" : nullptr;
    return *text ? 0 : 1;
}
}
"""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


class Argument(ctypes.Structure):
    _fields_ = (("wide", ctypes.c_int64), ("narrow", ctypes.c_float))


class Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("grid", ctypes.c_uint64 * 3),
        ("block", ctypes.c_uint64 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("wide", ctypes.c_int64),
        ("narrow", ctypes.c_float),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    source, made = folder / "driver.cpp", folder / "libdriver.so"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", made, source], check=True)
    return str(made)


def test_a_launch_passes_function_stream_grid_and_argument(library):
    (function,) = CudaDriver(library).load(b"\x7fELF...", ("paged_decode",))
    function.launch((70_000, 3), 128, 0xFFEEDDCCBBAA9988, Argument(-5 << 40, 0.5))
    last = ctypes.CDLL(library).last_launch
    last.restype = ctypes.POINTER(Launch)
    launch = last().contents
    assert (launch.function, launch.stream) == (0x7766554433221100, 0xFFEEDDCCBBAA9988)
    assert (list(launch.grid), list(launch.block)) == ([70_000, 3, 1], [128, 1, 1])
    assert (launch.shared_bytes, launch.wide, launch.narrow) == (0, -5 << 40, 0.5)


def test_code_that_the_driver_rejects_is_an_error_with_its_message(library):
    with pytest.raises(PluginLoadError, match="load the compiled kernels: error 200, device"):
        CudaDriver(library).load(b"no machine code", ("paged_decode",))


def test_a_kernel_that_is_not_there_is_named(library):
    with pytest.raises(PluginLoadError, match="find the kernel other: error 500, named symbol"):
        CudaDriver(library).load(b"\x7fELF...", ("other",))


def test_a_failed_launch_names_the_kernel_and_the_grid(library):
    (function,) = CudaDriver(library).load(b"\x7fELF...", ("paged_decode",))
    with pytest.raises(PluginLoadError, match=r"paged_decode in 0 x 2 blocks of 128.*error 1"):
        function.launch((0, 2), 128, 0, Argument(1, 1.0))


def test_a_missing_driver_is_an_error(tmp_path):
    with pytest.raises(PluginLoadError, match=r"needs NVIDIA's driver.*--attention-backend torch"):
        CudaDriver(str(tmp_path / "libcuda.so.1"))
