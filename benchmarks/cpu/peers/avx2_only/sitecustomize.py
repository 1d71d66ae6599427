"""Python reads this at start where the folder is on its path: torch then reports no AVX-512.

vLLM goes by what torch says of the processor when it chooses its compiled kernels, and has no
setting for it; its workers are processes of their own, so the parent alone cannot say it.
"""

import os
import types

if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
    try:
        import torch
        import torch.cpu
    except ImportError:  # a helper process of an environment without torch
        pass
    else:
        _found = torch.cpu.get_capabilities()
        _narrowed = types.MappingProxyType(
            {
                name: False if name.startswith(("avx512", "amx")) else value
                for name, value in _found.items()
            }
        )
        torch.cpu.get_capabilities = lambda: _narrowed
