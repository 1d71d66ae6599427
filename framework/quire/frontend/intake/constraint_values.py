"""Check that the values of a structured-output constraint are JSON of a bounded size.

A schema comes from a body, whose size is limited, or from a program, which may give anything.
"""

from quire.errors import GrammarError, InvalidRequestError
from quire.frontend.json_limits import check_json
from quire.sampling_params import StructuredOutputsParams


def check_values(params: StructuredOutputsParams) -> None:
    """Check the values of a constraint.

    Raises:
        GrammarError: A value is not JSON, or it is too large, too deep or not valid Unicode.
    """
    if params.calls is not None:
        return  # made of tools, whose values a body or `read_tools` has limited
    name = params.constraint
    try:
        check_json(getattr(params, name), name)
    except InvalidRequestError as error:
        raise GrammarError(str(error)) from None
