"""Totals of steps and tokens since the engine's start: counted in its thread, read in any."""

from dataclasses import dataclass

from quire.messages import EngineOutputs


@dataclass(frozen=True, slots=True)
class Done:
    """Totals at one moment.

    Attributes:
        num_steps: Number of steps that the engine ran.
        num_computed_tokens: Number of tokens whose KV was computed, in prompts and completions.
        num_generated_tokens: Number of generated tokens.
    """

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0


class Throughput:
    """Adds up the statistics of steps.

    Attributes:
        done: Totals; replaced as a whole, so that a reader never sees a partial update.
    """

    def __init__(self) -> None:
        self.done = Done()

    def add(self, outputs: EngineOutputs) -> None:
        """Add the outputs of one step."""
        before = self.done
        self.done = Done(
            before.num_steps + 1,
            before.num_computed_tokens + outputs.stats.num_scheduled_tokens,
            before.num_generated_tokens + sum(len(output.token_ids) for output in outputs.outputs),
        )
