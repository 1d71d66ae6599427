"""Where the kernels' own tests run: compiled on a GPU by `make test-gpu`, interpreted elsewhere."""

import os

import torch

DEVICE = torch.device(os.environ.get("QUIRE_TEST_DEVICE", "cpu"))
