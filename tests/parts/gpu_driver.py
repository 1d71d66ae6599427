"""A management library as NVIDIA's driver brings it, built for GPUs that are not there."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAME = "libnvidia-ml.so.1"
SOURCE = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
static char devices[] = "01";
static int open = 0;
int num_open(void) { return open; }
int nvmlInit_v2(void) { return INIT ? INIT : (open++, 0); }
int nvmlShutdown(void) { return open--, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index > 1) return 2;
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
    if (strcmp(name, "GPU-1")) return 6;
    *device = &devices[1];
    return 0;
}
int nvmlDeviceGetUUID(char *device, char *uuid, unsigned int length) {
    if (ANSWER) return ANSWER;
    if (length < sizeof "GPU-0") return 7;
    strcpy(uuid, "GPU-0");
    uuid[4] = *device;
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned int *count) {
    if (ANSWER) return ANSWER;
    *count = 2;
    return 0;
}
int nvmlDeviceGetMemoryInfo(char *device, memory_t *memory) {
    if (ANSWER) return ANSWER;
    memory->total = 80ULL << 30;
    memory->free = *device == '0' ? 70ULL << 30 : 7ULL << 30;
    memory->used = memory->total - memory->free;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(char *device, int *major, int *minor) {
    if (ANSWER) return ANSWER;
    *major = *device == '0' ? 9 : 8;
    *minor = *device == '0' ? 0 : 6;
    return 0;
}
"""


def build_driver(folder: Path, init: int = 0, answer: int = 0) -> str:
    """Build a library for two GPUs: 70 and 7 of 80 GiB free, compute capability 9.0 and 8.6.

    Args:
        folder: Where the library is written; on LD_LIBRARY_PATH it is found as the driver's.
        init: What its start returns; 0: it starts.
        answer: The same for what is asked of a device.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "driver.c", folder / NAME
    source.write_text(SOURCE.replace("INIT", str(init)).replace("ANSWER", str(answer)))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)
