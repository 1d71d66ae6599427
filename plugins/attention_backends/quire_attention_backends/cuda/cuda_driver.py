"""Load compiled kernels and launch them through the driver, on torch's own context and stream.

A launch is one call that asks nothing of the device, so it can be captured in a CUDA graph. A
kernel takes one structure, by value. The driver is reached by ctypes: nothing is linked, and a
machine without it can import this.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from quire.errors import PluginLoadError

LIBRARY = "libcuda.so.1"


class CudaDriver:
    """The driver's library.

    Raises:
        PluginLoadError: It cannot be loaded.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise PluginLoadError(
                f"attention backend cuda needs NVIDIA's driver, and it cannot be loaded: {error}; "
                "install it, or choose --attention-backend torch_sdpa"
            ) from error
        self._launch = self._library.cuLaunchKernel
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        self._launch.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]

    def load(self, cubin: bytes, names: tuple[str, ...]) -> tuple[CudaFunction, ...]:
        """Load machine code into the current context, for good, and find kernels in it.

        Raises:
            PluginLoadError: The driver refused.
        """
        module = ctypes.c_void_p()
        status = self._library.cuModuleLoadData(ctypes.byref(module), cubin)
        self._check(status, "load the compiled kernels")
        return tuple(CudaFunction(self, name, self._find(module, name)) for name in names)

    def launch(
        self,
        function: CudaFunction,
        grid: tuple[int, int],
        num_threads: int,
        stream: int,
        argument: ctypes.Structure,
    ) -> None:
        """Do `CudaFunction.launch`."""
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        status = self._launch(
            function.handle, *grid, 1, num_threads, 1, 1, 0, stream, arguments, None
        )
        if status:
            blocks = f"{grid[0]} x {grid[1]} blocks of {num_threads} threads"
            self._check(status, f"launch {function.name} in {blocks}")

    def _find(self, module: ctypes.c_void_p, name: str) -> int:
        handle = ctypes.c_void_p()
        status = self._library.cuModuleGetFunction(ctypes.byref(handle), module, name.encode())
        self._check(status, f"find the kernel {name}")
        return handle.value or 0

    def _check(self, status: int, what: str) -> None:
        if status == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        reason = "it has no text for it" if text.value is None else text.value.decode()
        raise PluginLoadError(f"the CUDA driver could not {what}: error {status}, {reason}")


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A kernel that is loaded."""

    driver: CudaDriver
    name: str
    handle: int

    def launch(
        self, grid: tuple[int, int], num_threads: int, stream: int, argument: ctypes.Structure
    ) -> None:
        """Put the kernel on a stream.

        Args:
            grid: Blocks in x and y.
            num_threads: Of a block.
            stream: Handle, as `torch.cuda.Stream.cuda_stream`.
            argument: The kernel's one argument; copied before this returns.

        Raises:
            PluginLoadError: The driver refused.
        """
        self.driver.launch(self, grid, num_threads, stream, argument)
