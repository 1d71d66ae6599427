"""One thread a process: the models here are tiny, and waiting for each other costs more."""

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network for anything
os.environ["TOKENIZERS_PARALLELISM"] = "false"
