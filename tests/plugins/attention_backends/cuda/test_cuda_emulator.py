"""The emulator that runs the decode kernels runs threads like a GPU, and reports deadlocks."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import cuda_emulated
import pytest
import torch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

SOURCE = f"""
#include "{Path(cuda_emulated.__file__).parent / "cuda_emulator.h"}"

__global__ void reverse_warps(int *out) {{
    const int other = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x, 31 - threadIdx.x % 32);
    const int twice = __shfl_xor_sync(0xFFFFFFFFu, other, 1);
    out[blockIdx.x * 64 + threadIdx.x] = 1000 * blockIdx.x + twice;
}}

__global__ void reverse_blocks(int *out) {{
    __shared__ int shared[64];
    shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = shared[63 - threadIdx.x];
}}

__global__ void part_ways(int *out) {{
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 1;
}}

__global__ void part_in_a_warp(int *out) {{
    if (threadIdx.x % 2) out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1, 2);
}}

#define RUN(name) \\
    extern "C" int run_##name(int *out, int blocks) {{ \\
        return emulator::run_grid(blocks, 1, 64, [=] {{ name(out); }}); \\
    }}
RUN(reverse_warps) RUN(reverse_blocks) RUN(part_ways) RUN(part_in_a_warp)
extern "C" unsigned short half_of(float x) {{ return half_of_float(x); }}
extern "C" float float_of(unsigned short bits) {{ return float_of_half(bits); }}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulator")
    source, made = folder / "unit.cpp", folder / "unit.so"
    source.write_text(SOURCE)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", made, source]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(made))


def run(library, name, blocks=1):
    out = (ctypes.c_int * (64 * blocks))()
    return getattr(library, f"run_{name}")(out, blocks), list(out)


def test_a_shuffle_brings_what_another_lane_of_the_warp_has(library):
    status, out = run(library, "reverse_warps", blocks=2)
    warp = [(31 - lane) ^ 1 for lane in range(32)]
    block = warp + [32 + lane for lane in warp]
    assert status == 0
    assert out == block + [1000 + thread for thread in block]


def test_a_barrier_waits_for_the_whole_block(library):
    status, out = run(library, "reverse_blocks")
    assert status == 0
    assert out == list(range(63, -1, -1))


@pytest.mark.parametrize("name", ["part_ways", "part_in_a_warp"])
def test_threads_that_wait_for_ever_are_an_error(library, name):
    assert run(library, name)[0] == 1


def test_float16_is_rounded_as_torch_rounds(library):
    library.half_of.argtypes, library.half_of.restype = [ctypes.c_float], ctypes.c_ushort
    library.float_of.argtypes, library.float_of.restype = [ctypes.c_ushort], ctypes.c_float
    sizes = 2.0 ** torch.randint(-26, 17, (2000,)).float()
    numbers = torch.cat([torch.randn(2000) * sizes, torch.tensor([0.0, -0.0, 65519.0, 65520.0])])
    true = numbers.half()
    codes = [library.half_of(number) for number in numbers.tolist()]
    assert codes == (true.view(torch.int16).int() & 0xFFFF).tolist()
    assert [library.float_of(code) for code in codes] == true.tolist()
