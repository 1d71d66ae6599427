"""Loading and launching of compiled kernels through the CUDA driver, on torch's context and stream.

A launch is one call without synchronization, so it can be captured in a CUDA graph. A kernel takes
one structure by value. The driver is called through ctypes: nothing is linked, and the module can
be imported on a machine without the driver.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from quire.errors import PluginLoadError

LIBRARY = "libcuda.so.1"


class CudaDriver:
    """The library of the CUDA driver.

    Raises:
        PluginLoadError: The library cannot be loaded.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise PluginLoadError(
                f"attention backend cuda needs NVIDIA's driver, which cannot be loaded: {error}; "
                "install the driver, or choose --attention-backend torch_sdpa"
            ) from error
        self._launch = self._library.cuLaunchKernel
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        self._launch.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]

    def load(self, cubin: bytes, names: tuple[str, ...]) -> tuple[CudaFunction, ...]:
        """Load machine code into the current context and find kernels in it; it is never unloaded.

        Raises:
            PluginLoadError: The driver reported an error.
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
        """Launch a function; see `CudaFunction.launch`."""
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
        reason = "unknown error" if text.value is None else text.value.decode()
        raise PluginLoadError(f"the CUDA driver failed to {what}: error {status}, {reason}")


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A loaded kernel."""

    driver: CudaDriver
    name: str
    handle: int

    def launch(
        self, grid: tuple[int, int], num_threads: int, stream: int, argument: ctypes.Structure
    ) -> None:
        """Launch the kernel on a stream.

        Args:
            grid: Number of blocks in x and y.
            num_threads: Number of threads per block.
            stream: Handle of the stream, as in `torch.cuda.Stream.cuda_stream`.
            argument: Argument of the kernel; copied before this returns.

        Raises:
            PluginLoadError: The driver reported an error.
        """
        self.driver.launch(self, grid, num_threads, stream, argument)
