"""Check of a conformance kit, which also works where Python leaves out `assert`."""


def expect(is_true: bool, message: str) -> None:
    """Raise an AssertionError with this message unless a condition is true."""
    if not is_true:
        raise AssertionError(message)
