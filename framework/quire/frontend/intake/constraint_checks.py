"""Checks of structured-output constraints, whose outcomes are remembered.

A check may take a second of CPU time, and clients send the same schema again and again. So outcomes
are kept by content, refusals too, and a constraint that is new can be checked in another thread.
"""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

import msgspec

from quire.errors import GrammarError, RequestError
from quire.frontend.intake.constraint_values import check_values
from quire.frontend.plugin_failure import plugin_failure
from quire.sampling_params import StructuredOutputsParams

MAX_REMEMBERED = 1024  # outcomes
UNKNOWN = GrammarError("not checked")

CheckGrammar = Callable[[StructuredOutputsParams], None]


class ConstraintChecks:
    """Checks constraints by the engine's backends. May be used by several threads.

    Args:
        check_grammar: Function that validates a constraint; None: any is valid.
    """

    def __init__(self, check_grammar: CheckGrammar | None) -> None:
        self._check_grammar = check_grammar
        self._refusals: OrderedDict[bytes, GrammarError | None] = OrderedDict()  # oldest first
        self._last: StructuredOutputsParams | None = None  # valid; a batch often shares one

    def is_known(self, constraint: StructuredOutputsParams) -> bool:
        """Return whether the outcome of a constraint is remembered, so that `check` is quick."""
        if constraint is self._last:
            return True
        refusal = self._refusals.get(_digest(constraint), UNKNOWN)
        if refusal is None:
            self._last = constraint
        return refusal is not UNKNOWN

    def check(self, constraint: StructuredOutputsParams) -> None:
        """Check a constraint.

        Raises:
            GrammarError: No backend supports it, or its values are no JSON.
            RequestFailedError: A backend failed.
        """
        if constraint is self._last:
            return
        check_values(constraint)
        digest = _digest(constraint)
        refusal = self._refusals.get(digest, UNKNOWN)  # another thread may forget it at any time
        if refusal is UNKNOWN:
            refusal = self._refusal(constraint)
            self._remember(digest, refusal)
        if refusal is not None:
            raise GrammarError(str(refusal), param=refusal.param)
        self._last = constraint

    def _refusal(self, constraint: StructuredOutputsParams) -> GrammarError | None:
        """Ask the backends; None: one of them supports the constraint."""
        if self._check_grammar is None:
            return None
        try:
            self._check_grammar(constraint)
        except GrammarError as error:
            return error.with_traceback(None)
        except RequestError:
            raise
        except Exception as error:
            raise plugin_failure(
                error,
                "the structured-output backend",
                "while checking a constraint",
                subject="on this request's constraint",
            ) from error
        return None

    def _remember(self, digest: bytes, refusal: GrammarError | None) -> None:
        if digest:
            self._refusals[digest] = refusal
        while len(self._refusals) > MAX_REMEMBERED:
            self._refusals.popitem(last=False)


def _digest(constraint: StructuredOutputsParams) -> bytes:
    """Return a hash of a constraint's content; nothing if it has values that are no JSON."""
    try:
        return sha256(msgspec.msgpack.encode(constraint)).digest()
    except (OverflowError, RecursionError, TypeError, ValueError):
        return b""
