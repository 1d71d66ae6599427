"""Every variant of the decode kernels compiles for GPUs of other machines, and fits them."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import triton
from dry_launch import SHARED_BYTES

from quire_attention_backends.cuda.cuda_compiler import STANDARD, Nvcc
from quire_attention_backends.cuda.cuda_decode import KERNELS, DecodeVariant, read_source

DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
NVCC = shutil.which("nvcc")
TYPES = tuple(itertools.product((116, 32, 16), (116, 8, 32, 16)))
HEAD_DIMS = (64, 80, 96, 128, 256)
HEADS = ((1, 1), (2, 1), (4, 1), (4, 2), (4, 4))
CAPABILITIES = (80, 90)
EXAMPLES = (
    DecodeVariant(116, 116, 128, 4, 1),
    DecodeVariant(116, 116, 64, 2, 1),
    DecodeVariant(116, 8, 256, 4, 4),
    DecodeVariant(32, 32, 256, 1, 1),
    DecodeVariant(16, 32, 80, 4, 2),
)

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc")


def check(variant, capability, folder):
    """Compile a variant; registers do not spill, and shared memory fits."""
    macros = [f"-D{name}={value}" for name, value in variant.macros.items()]
    options = (f"--gpu-architecture=sm_{capability}", STANDARD, *macros)
    file = folder / "kernels.cubin"
    file.write_bytes(Nvcc(NVCC).compile(read_source(), options))
    usage = resources_of(file)
    assert usage.keys() == set(KERNELS)
    for name, used in usage.items():
        assert used["STACK"] == used["LOCAL"] == 0, f"{name} of {variant} spills: {used}"
        assert used["SHARED"] <= min(48 * 1024, SHARED_BYTES[capability]), (name, variant, used)


def resources_of(file):
    """Return what each kernel of a file uses."""
    text = subprocess.run(
        [DISASSEMBLER, "--dump-resource-usage", file], capture_output=True, text=True, check=True
    ).stdout
    kernels = re.findall(r"Function (\w+):\s*(.*)", text)
    return {
        name: {what: int(number) for what, number in re.findall(r"(\w+):(\d+)", used)}
        for name, used in kernels
    }


@needs_nvcc
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize("variant", EXAMPLES, ids=str)
def test_variants_of_each_kind_fit(variant, capability, tmp_path):
    check(variant, capability, tmp_path)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_every_variant_that_can_be_chosen_fits(types, head_dim, capability, tmp_path):
    for heads in HEADS:
        check(DecodeVariant(*types, head_dim, *heads), capability, tmp_path)


def test_the_source_includes_nothing():
    assert "#include" not in read_source()
