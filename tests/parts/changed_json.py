"""JSON bodies in which one value is another one, of any type."""

from hypothesis import strategies as st

WRONG = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**30, "", " ", "x", "\ud800", [], {}, [[]], [{}], [None], {"a": {}}]
)


def changed_anywhere(body):
    """Return a strategy of a body with a wrong value anywhere."""
    return st.builds(_changed, st.just(body), st.sampled_from([*_places(body)]), WRONG)


def _places(value, path=()):
    """Yield the path of everything in a JSON value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from _places(inner, (*path, key))


def _changed(value, path, new):
    """Return a JSON value with another one at a path."""
    key, *rest = path
    found = value.copy()
    found[key] = _changed(value[key], rest, new) if rest else new
    return found
