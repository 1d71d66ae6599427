"""A library of kernels for 64-bit Arm, run on another processor: each call in an emulator.

The source is compiled, unchanged, to a program of its own (zig has a compiler and a C library for
Arm), which unicorn starts and stops in `main`. Calls then run on the memory of this process:
wherever the program reads or writes, the emulator maps these addresses.
"""

from __future__ import annotations

import ctypes
import io
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.native.compiler import FLAGS
from quire.native.library import NativeLibrary
from quire.native.sources import HEADERS

PACKAGES = {"ziglang": "ziglang", "unicorn": "unicorn", "elftools": "pyelftools"}
MISSING = [name for module, name in PACKAGES.items() if find_spec(module) is None]
COMPILER = (sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl")
LIBRARY_FLAGS = ("-shared", "-fvisibility=hidden")
COMPILE_TIMEOUT_S = 900
NO_SUCH_CALL = 2**64 - 38  # Linux' error number ENOSYS
READY = 4095  # a system call that there is not: the program has started
MAIN = f'int main() {{ asm volatile("mov x8, #{READY}\\n\\tsvc #0"); }}'
# Where the program has its own memory: no process of Linux is given these addresses.
PROGRAM, HEAP, STACK, END = (0x2000_0000_0000 + i * 0x10_0000_0000 for i in range(4))
AT_PHDR, AT_PHENT, AT_PHNUM, AT_PAGESZ, AT_RANDOM = 3, 4, 5, 6, 25  # names of Linux
STACK_BYTES, HEAP_BYTES, PAGE, SHARED_BYTES = 1 << 23, 1 << 28, 1 << 12, 1 << 21


class ArmLibrary:
    """The functions of a library, compiled for Arm; it stands in for a `NativeLibrary`."""

    def __init__(self, library: NativeLibrary) -> None:
        self.library = library
        self._loaded: SimpleNamespace | None = None

    def load(self) -> SimpleNamespace:
        """Compile and start the program, once."""
        if self._loaded is None:
            program = ArmProgram(compiled(self.library.source, self.library.macros))
            functions = self.library.functions
            calls = {name: self._call(program, name, functions[name]) for name in functions}
            self._loaded = SimpleNamespace(**calls)
        return self._loaded

    def unavailable_reason(self) -> str | None:
        """Return None: `load` raises an error instead."""
        self.load()
        return None

    def _call(
        self, program: ArmProgram, name: str, types: Sequence[type[Any]]
    ) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            status = program.call(name, types, arguments)
            if self.library.check is not None:
                self.library.check(ctypes.c_int(status & 0xFFFFFFFF).value, call, arguments)

        return call


class ArmProgram:
    """A static program in the emulator, which waits for calls of its functions."""

    def __init__(self, code: bytes) -> None:
        import unicorn
        from unicorn import arm64_const as arm

        self._arm = arm
        self._cpu = cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        cpu.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        vectors_allowed = cpu.reg_read(arm.UC_ARM64_REG_CPACR_EL1) | 3 << 20
        cpu.reg_write(arm.UC_ARM64_REG_CPACR_EL1, vectors_allowed)
        cpu.hook_add(unicorn.UC_HOOK_INTR, self._system_call)
        cpu.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._share)
        self._fault: str | None = None
        self._heap_end = HEAP
        self._start(code)

    def call(self, name: str, types: Sequence[type[Any]], arguments: Sequence[object]) -> int:
        """Call a function by Arm's convention, and return its integer."""
        arm, integers, floats = self._arm, [], 0
        for kind, argument in zip(types, arguments, strict=True):
            if issubclass(kind, ctypes.c_float | ctypes.c_double):
                bits = bytes(kind(argument)).ljust(8, b"\0")
                self._cpu.reg_write(arm.UC_ARM64_REG_D0 + floats, int.from_bytes(bits, "little"))
                floats += 1
            else:
                integers.append(_integer(argument))
        for register, value in enumerate(integers[:8]):
            self._cpu.reg_write(arm.UC_ARM64_REG_X0 + register, value)
        stack = STACK - (len(integers[8:]) * 8 + 15) // 16 * 16 - PAGE
        self._cpu.mem_write(stack, struct.pack(f"<{len(integers[8:])}Q", *integers[8:]))
        self._cpu.reg_write(arm.UC_ARM64_REG_SP, stack)
        self._cpu.reg_write(arm.UC_ARM64_REG_LR, END)
        self._run(self._functions[name], END)
        return int(self._cpu.reg_read(arm.UC_ARM64_REG_X0))

    def _start(self, code: bytes) -> None:
        from elftools.elf.elffile import ELFFile

        file = ELFFile(io.BytesIO(code))
        parts = [part for part in file.iter_segments() if part["p_type"] == "PT_LOAD"]
        end = max(part["p_vaddr"] + part["p_memsz"] for part in parts)
        for start, size in (
            (PROGRAM, end), (HEAP, HEAP_BYTES), (STACK - STACK_BYTES, STACK_BYTES), (END, PAGE),
        ):  # fmt: skip
            self._cpu.mem_map(start, -(-size // PAGE) * PAGE)
        for part in parts:
            self._cpu.mem_write(PROGRAM + part["p_vaddr"], part.data())
        self._functions = {
            symbol.name: PROGRAM + symbol["st_value"]
            for symbol in file.get_section_by_name(".symtab").iter_symbols()
        }
        header = file.header
        headers = PROGRAM + header["e_phoff"]
        words = (  # what Linux gives a program: the number of arguments, its name, no environment,
            *(1, STACK - 64, 0, 0),
            *(AT_PHDR, headers, AT_PHENT, header["e_phentsize"], AT_PHNUM, header["e_phnum"]),
            *(AT_PAGESZ, PAGE, AT_RANDOM, STACK - 64, 0, 0),
        )
        stack = STACK - PAGE
        self._cpu.mem_write(stack, struct.pack(f"<{len(words)}Q", *words))
        self._cpu.reg_write(self._arm.UC_ARM64_REG_SP, stack)
        self._run(PROGRAM + header["e_entry"], 0)

    def _run(self, start: int, end: int) -> None:
        import unicorn

        try:
            self._cpu.emu_start(start, end)
        except unicorn.UcError as error:
            raise RuntimeError(f"{error} at {self._where()}; {self._fault}") from error
        if self._fault is not None:
            raise RuntimeError(self._fault)

    def _where(self) -> str:
        at = self._cpu.reg_read(self._arm.UC_ARM64_REG_PC)
        before = [(place, name) for name, place in self._functions.items() if place <= at]
        return f"{at:#x} ({max(before)[1] if before else 'no function'})"

    def _share(
        self, cpu: Any, access: int, address: int, size: int, value: int, data: object
    ) -> bool:
        """Map memory of this process at its own address."""
        del access, size, value, data
        start = address & -SHARED_BYTES
        if not start or start + SHARED_BYTES > 1 << 47:
            self._fault = f"there is no memory at {address:#x}"
            return False
        cpu.mem_map_ptr(start, SHARED_BYTES, 3, start)
        return True

    def _system_call(self, cpu: Any, number: int, data: object) -> None:
        """Serve the few calls that a program makes before `main`, and `mmap`."""
        del data
        arm = self._arm
        call, size = (
            cpu.reg_read(register) for register in (arm.UC_ARM64_REG_X8, arm.UC_ARM64_REG_X1)
        )
        result = NO_SUCH_CALL
        if number != 2 or call in (93, 94, 129, 131):  # no system call; exit, kill
            self._fault = f"the program ends at {self._where()}: exception {number}, call {call}"
            cpu.emu_stop()
        elif call == READY:
            cpu.emu_stop()
        elif call == 222 and self._heap_end + size <= HEAP + HEAP_BYTES:  # mmap
            result, self._heap_end = self._heap_end, self._heap_end + -(-size // PAGE) * PAGE
        elif call in (96, 99, 135, 178, 215, 226, 233):  # of threads and signals; munmap, mprotect
            result = 0
        cpu.reg_write(arm.UC_ARM64_REG_X0, result)


def compiled(source: Path, macros: Sequence[str] = ()) -> bytes:
    """Compile a source of kernels to a program for Arm."""
    with tempfile.TemporaryDirectory() as folder:
        unit, program = Path(folder) / "unit.cpp", Path(folder) / "program"
        defined = "".join(f"#define {name}\n" for name in macros)
        unit.write_text(f'{defined}#include "{source}"\n{MAIN}\n')
        flags = [flag for flag in FLAGS if flag not in LIBRARY_FLAGS]
        command = [*COMPILER, *flags, "-mcpu=generic", "-fPIE", "-pie", "-static", "-rdynamic"]
        done = subprocess.run(
            [*command, f"-I{HEADERS}", str(unit), "-o", str(program)],
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return program.read_bytes()


def _integer(argument: Any) -> int:
    """Return the register of an argument: an integer, a pointer or None."""
    if argument is None:
        return 0
    if hasattr(argument, "_obj"):  # ctypes.byref
        argument = argument._obj
    number = argument if isinstance(argument, int) else ctypes.addressof(argument)
    return number & 0xFFFF_FFFF_FFFF_FFFF
