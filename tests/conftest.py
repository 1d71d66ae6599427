"""One thread a process: the models here are tiny, and waiting for each other costs more."""

import os

from hypothesis import settings

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network for anything
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Each run at a desk looks at new examples; what CI says must depend on the change alone.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
