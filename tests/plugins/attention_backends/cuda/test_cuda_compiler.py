"""CUDA C++ is compiled by the available compiler and cached; errors have the compiler's output."""

import shutil

import pytest

from quire.errors import PluginLoadError
from quire_attention_backends.cuda import cuda_compiler
from quire_attention_backends.cuda.cuda_compiler import (
    STANDARD,
    Nvcc,
    Nvrtc,
    compile_cubin,
    find_compiler,
    nvrtc_candidates,
)
from quire_attention_backends.cuda.cuda_decode import KERNELS, DecodeVariant, read_source

NVCC = shutil.which("nvcc")
ELF = b"\x7fELF"
OPTIONS = ("--gpu-architecture=sm_90", STANDARD)
KERNEL = 'extern "C" __global__ void fill(int *out) { out[threadIdx.x] = NUMBER; }'

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc")


def loaded_nvrtc():
    for path in nvrtc_candidates():
        try:
            return Nvrtc(path)
        except OSError:
            continue
    return None


@pytest.fixture
def nvrtc():
    found = loaded_nvrtc()
    if found is None:
        pytest.skip("there is no libnvrtc")
    return found


@needs_nvcc
def test_nvcc_compiles_once_and_keeps_the_code(tmp_path):
    folder = tmp_path / "kernels"
    compiler = Counted(Nvcc(NVCC))
    first = compile_cubin(KERNEL, {"NUMBER": 7}, 90, compiler, folder)
    assert first.startswith(ELF)
    assert b"fill" in first
    assert compile_cubin(KERNEL, {"NUMBER": 7}, 90, compiler, folder) == first
    assert compiler.count == 1


@needs_nvcc
@pytest.mark.parametrize(
    "change", [{"source": KERNEL + "\n"}, {"macros": {"NUMBER": 8}}, {"compute_capability": 80}],
    ids=str,
)  # fmt: skip
def test_another_source_macro_or_gpu_is_compiled_anew(tmp_path, change):
    compiler = Counted(Nvcc(NVCC))
    arguments = {"source": KERNEL, "macros": {"NUMBER": 7}, "compute_capability": 90}
    for each in (arguments, {**arguments, **change}):
        compile_cubin(**each, compiler=compiler, folder=tmp_path / "kernels")
    assert compiler.count == 2


def test_another_version_of_the_compiler_compiles_anew(tmp_path):
    old, new = CompilerStub("nvrtc 12.8", b"old"), CompilerStub("nvrtc 13.0", b"new")
    assert compile_cubin(KERNEL, {}, 90, old, tmp_path) == b"old"
    assert compile_cubin(KERNEL, {}, 90, new, tmp_path) == b"new"
    assert compile_cubin(KERNEL, {}, 90, old, tmp_path) == b"old"


@needs_nvcc
def test_nvcc_reports_its_version():
    assert Nvcc(NVCC).version.startswith("nvcc V")


@needs_nvcc
def test_a_wrong_source_is_refused_by_nvcc_with_the_line():
    with pytest.raises(PluginLoadError, match=r"(?s)paged_decode.cu\(1\).*--attention-backend"):
        Nvcc(NVCC).compile("this is no source", OPTIONS)


@needs_nvcc
def test_a_gpu_that_the_compiler_does_not_know_is_named(tmp_path):
    with pytest.raises(PluginLoadError, match="sm_10 "):
        compile_cubin(KERNEL, {"NUMBER": 1}, 10, Nvcc(NVCC), tmp_path / "kernels")


def test_a_compiler_that_cannot_be_run_is_an_error(tmp_path):
    with pytest.raises(PluginLoadError, match=r"gone could not be run.*--attention-backend triton"):
        Nvcc(str(tmp_path / "gone")).compile(KERNEL, OPTIONS)


def test_without_a_compiler_the_error_lists_what_was_tried(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_compiler, "nvrtc_candidates", lambda: iter(["libnvrtc.so.none"]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PluginLoadError) as caught:
        find_compiler()
    for said in ("libnvrtc.so.none", f"{tmp_path}/cuda/bin/nvcc", "nvidia-cuda-nvrtc", "triton"):
        assert said in str(caught.value)


@needs_nvcc
def test_nvcc_is_used_without_nvrtc(monkeypatch):
    monkeypatch.setattr(cuda_compiler, "nvrtc_candidates", lambda: iter(["libnvrtc.so.none"]))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert find_compiler() == Nvcc(NVCC)


@needs_nvcc
def test_nvcc_of_cuda_home_comes_before_the_one_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_compiler, "nvrtc_candidates", lambda: iter(()))
    mine = tmp_path / "bin" / "nvcc"
    mine.parent.mkdir()
    mine.symlink_to(NVCC)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_compiler() == Nvcc(str(mine))


def test_nvrtc_is_looked_for_among_installed_packages_first(monkeypatch, tmp_path):
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(library) in list(nvrtc_candidates())
    assert list(nvrtc_candidates())[-1] == "libnvrtc.so"


def test_nvrtc_compiles_the_decode_kernels_without_headers(nvrtc):
    macros = DecodeVariant(116, 116, 128, 4, 1).macros
    cubin = compile_cubin_with(nvrtc, read_source(), macros)
    assert cubin.startswith(ELF)
    assert all(name.encode() in cubin for name in KERNELS)


def test_a_wrong_source_is_refused_by_nvrtc_with_the_line(nvrtc):
    with pytest.raises(PluginLoadError, match=r"(?s)nvrtc .*paged_decode.cu\(1\): error"):
        nvrtc.compile("this is no source", OPTIONS)


def compile_cubin_with(compiler, source, macros):
    return compiler.compile(source, (*OPTIONS, *(f"-D{k}={v}" for k, v in macros.items())))


class Counted:
    """A compiler that counts its calls."""

    def __init__(self, inner):
        self.inner, self.version, self.count = inner, inner.version, 0

    def compile(self, source, options):
        self.count += 1
        return self.inner.compile(source, options)


class CompilerStub:
    """A compiler with a given version that returns the given code."""

    def __init__(self, version, code):
        self.version, self.code = version, code

    def compile(self, source, options):
        return self.code
