"""C++ kernels for CPUs, compiled on first use for the processor of this machine.

A kernel is a C++ source with a plain C interface. It includes no torch header, so it compiles in
seconds. All libraries of a process compute on one thread pool, so they do not compete for cores.
Plugins ship their own sources, and build them with the same `library.NativeLibrary`.
"""
