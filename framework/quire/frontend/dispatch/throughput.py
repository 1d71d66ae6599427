"""How much the engine has done since it started: counted in its thread, read in any other."""

from dataclasses import dataclass

from quire.messages import EngineOutputs


@dataclass(frozen=True, slots=True)
class Done:
    """Totals at one moment.

    Attributes:
        num_steps: Steps that the engine ran.
        num_computed_tokens: Tokens whose KV was computed, of prompts and answers.
        num_generated_tokens: Tokens of answers.
    """

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0


class Throughput:
    """Adds up what the steps say.

    Attributes:
        done: The totals; replaced as a whole, so that a reader never sees half a step.
    """

    def __init__(self) -> None:
        self.done = Done()

    def take(self, outputs: EngineOutputs) -> None:
        """Count one step."""
        before = self.done
        self.done = Done(
            before.num_steps + 1,
            before.num_computed_tokens + outputs.stats.num_scheduled_tokens,
            before.num_generated_tokens + sum(len(output.token_ids) for output in outputs.outputs),
        )
