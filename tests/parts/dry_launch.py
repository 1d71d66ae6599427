"""Dry launches of Triton kernels: compilation for a GPU that is not present.

Inside `dry_launches(capability)` a launch compiles its kernel for that compute capability, with the
same types, constants and alignments as the launch, and then does nothing; tensors may be on any
device. Registers and memory of each kernel are read from its machine code. It needs a process that
does not interpret kernels, so tests call `compiled_in_child`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHARED_BYTES = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}  # of a block, by compute capability
TIMEOUT_S = 280


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Result of compiling one launch.

    Attributes:
        name: Name of the kernel's function.
        what: Constants that it was compiled with, for people.
        num_registers: Number of registers per thread.
        local_bytes: Stack and local memory per thread; not 0 if registers spill.
        shared_bytes: Shared memory per block.
    """

    name: str
    what: str
    capability: int
    num_registers: int
    local_bytes: int
    shared_bytes: int

    def fits(self) -> bool:
        return self.shared_bytes <= SHARED_BYTES[self.capability]


def compiled_in_child(function: str, capability: int) -> list[CompiledKernel]:
    """Run `module:function` in a new process with dry launches; return their kernels.

    On a GPU, running the tests compiles the kernels anyway, so the test is skipped there.
    """
    if os.environ.get("QUIRE_TEST_DEVICE") == "cuda":
        import pytest

        pytest.skip("this compiles for GPUs that are not present: make test")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernels.json"
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "0",
            "TRITON_DEFAULT_FP_FUSION": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        done = subprocess.run(
            [sys.executable, __file__, function, str(capability), str(output)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return [CompiledKernel(**each) for each in json.loads(output.read_text())]


@contextmanager
def dry_launches(capability: int) -> Iterator[list[CompiledKernel]]:
    """Compile all kernels launched inside, without running them; needs a process of its own."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Absent:
        """Driver of a GPU that is not present."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_active_torch_device(self) -> str:
            return "cpu"

    found: dict[str, CompiledKernel] = {}
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in found:
            found[kernel.hash] = _read(kernel, capability, _constants(self, args, kwargs))

    driver.set_active(Absent())
    JITFunction.run = compile_only  # type: ignore[method-assign]
    kernels: list[CompiledKernel] = []
    try:
        yield kernels
    finally:
        JITFunction.run = run  # type: ignore[method-assign]
        kernels.extend(found.values())


def _constants(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    names = [parameter.name for parameter in function.params]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    plain = (int, float, str, bool, type(None))
    return ", ".join(f"{name}={value}" for name, value in given.items() if isinstance(value, plain))


def _read(kernel: Any, capability: int, what: str) -> CompiledKernel:
    """Read registers, stack and shared memory with the disassembler."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return CompiledKernel(
        name=kernel.metadata.name,
        what=what,
        capability=capability,
        num_registers=int(usage["REG"]),
        local_bytes=int(usage["STACK"]) + int(usage["LOCAL"]),
        shared_bytes=kernel.metadata.shared,
    )


def _main(function: str, capability: str, output: str) -> None:
    module, _, name = function.partition(":")
    run: Callable[[], None] = getattr(importlib.import_module(module), name)
    with dry_launches(int(capability)) as kernels:
        run()
    Path(output).write_text(json.dumps([asdict(kernel) for kernel in kernels]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
