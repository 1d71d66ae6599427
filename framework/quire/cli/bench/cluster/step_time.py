"""Duration of a step of a virtual replica: a + b * tokens + c * cached tokens that are read.

The defaults are those of Qwen3-0.6B on two cores, from benchmarks/results/cpu.json (stages
`single`, `qwen3-0.6b` and `machine`, of instruction set `native`): 35 tokens/s when one request
decodes, and 128 tokens of a prompt in 0.30 s. A cached token is 229 kB, read at 32 GB/s.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step.

    Attributes:
        fixed_s: Seconds of any step.
        token_s: Seconds for each token that is computed.
        cached_s: Seconds for each cached token that a scheduled request reads.
    """

    fixed_s: float = 26e-3
    token_s: float = 2.1e-3
    cached_s: float = 7e-6

    def seconds(self, num_tokens: int, num_cached: int) -> float:
        """Return the duration of a step."""
        return self.fixed_s + self.token_s * num_tokens + self.cached_s * num_cached
