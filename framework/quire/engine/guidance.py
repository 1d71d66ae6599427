"""A guided request and its companion: the same completion after another prompt.

Classifier-free guidance compares the logits after two prompts. So a second request, the companion,
computes the other prompt and then the tokens that the guided request samples. Each computes its
prompt but for the last token by itself, in chunks. From there on both are in the same steps, where
the worker gives the token of the guided request to both:

    guided       [ prompt ............ ] t1 t2 t3
    companion          [ other prompt  ] t1 t2 t3
                                       ^ the first step with a row of each

The companion starts with the guided request, never waits in the queue, and has no output.
"""

from __future__ import annotations

import msgspec

from quire.engine.request import Request
from quire.engine.request_group import RequestGroup
from quire.messages import Companion


class GuidedPair(RequestGroup):
    """A guided request, the root of the group, and its companion.

    Args:
        root: The guided request.
        companion: Prompt and parameters of the companion.

    Attributes:
        companion: The companion.
    """

    def __init__(self, root: Request, companion: Companion) -> None:
        super().__init__(root, width=2, num_held_back=1)
        message = msgspec.structs.replace(
            root.message,
            token_ids=companion.token_ids,
            params=companion.params,
            media=(),
            stop_token_ids=(),
            thinking_end=None,
            thinking_budget=None,
            call_openers=None,
            companion=None,
        )
        self.companion = root.companion = root.with_companion(message)
        self.companion.group = self
        self.members.append(self.companion)

    @property
    def is_in_step(self) -> bool:
        """Whether each lacks one token, known or expected, so that a step samples the next."""
        return all(member.num_pending_tokens <= 1 for member in self.members)
