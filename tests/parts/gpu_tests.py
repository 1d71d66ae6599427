"""Where tests/gpu runs: on a GPU; or, to see that the tests themselves are right, interpreted."""

import os

ON_CPU = os.environ.get("QUIRE_GPU_TESTS_ON_CPU") == "1"
DEVICE = "cpu" if ON_CPU else "cuda"
