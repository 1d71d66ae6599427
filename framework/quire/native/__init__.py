"""C++ kernels for CPUs, compiled on first use for the processor that is there.

A kernel is a C++ source behind a plain C interface. It includes no torch header, so it compiles in
seconds. It computes on one thread pool of the process, so libraries do not take each other's cores.
Plugins bring their own sources, and build them by the same `library.NativeLibrary`.
"""
