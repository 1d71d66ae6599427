"""Check of the formats of custom tools by the backends, in the terms in which they were sent.

A backend gets the regular expression of an input within the grammar of calls, and as a part of a
larger one. So its refusal of that says too little, and of each expression alone it says enough.
"""

from collections.abc import Mapping

from quire.errors import GrammarError
from quire.frontend.chat.tools.custom_tools import whole_pattern
from quire.frontend.intake.intake import Intake
from quire.sampling_params import SamplingParams, StructuredOutputsParams


def check_formats(formats: Mapping[str, str], params: SamplingParams, intake: Intake) -> None:
    """Check regular expressions, if the calls of a request follow them; it may take long.

    Args:
        formats: Regular expressions by their paths in the request.
        params: Parameters of the request.
        intake: Intake that asks the backends.

    Raises:
        GrammarError: No backend supports one; `param` is its path.
        RequestFailedError: A backend failed.
    """
    if params.calls is None:
        return
    for where, definition in formats.items():
        refusal = _refusal(whole_pattern(definition), intake)
        if refusal is not None:
            own = _refusal(definition, intake) or refusal  # with the characters as they were sent
            raise GrammarError(f"{where} is not supported: {own}", param=where)


def _refusal(pattern: str, intake: Intake) -> GrammarError | None:
    text = StructuredOutputsParams(json={"type": "string", "pattern": pattern})
    try:
        intake.check_constraint(SamplingParams(structured_outputs=text))
    except GrammarError as error:
        return error
    return None
