"""A recogniser of grammars in GBNF without a lexer, and grammars for Hypothesis.

An expression is a tuple: ("chars", characters), ("not", characters), ("text", text),
("rule", name), ("seq", expressions), ("or", expressions) or ("times", expression, low, high).
"""

from hypothesis import strategies as st

LETTERS = "abéè"
TIMES = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def gbnf_of(rules):
    """Return the grammar as text."""
    return "\n".join(f"{name} ::= {_written(body)}" for name, body in rules.items())


def _written(expression):
    kind, what, *bounds = expression
    if kind in ("chars", "not"):
        return f"[{'^' if kind == 'not' else ''}{what}]"
    if kind == "text":
        return f'"{what}"'
    if kind == "rule":
        return what
    if kind == "times":
        low, high = bounds
        times = f"{{{low},{'' if high is None else high}}}"
        return f"({_written(what)}){TIMES.get((low, high), times)}"
    return f"({(' | ' if kind == 'or' else ' ').join(map(_written, what))})"


def is_allowed(rules, text, root="root"):
    """Return whether a rule of the grammar allows a text.

    The ends of each rule from each position are computed until nothing is new.
    """
    ends = {(name, start): set() for name in rules for start in range(len(text) + 1)}
    is_new = True
    while is_new:
        is_new = False
        for (name, start), known in ends.items():
            found = _ends(rules[name], text, {start}, ends)
            is_new = is_new or not found <= known
            known |= found
    return len(text) in ends[root, 0]


def _ends(expression, text, starts, ends):
    kind, what, *bounds = expression
    if kind in ("chars", "not"):
        wanted = kind == "chars"
        return {i + 1 for i in starts if i < len(text) and (text[i] in what) == wanted}
    if kind == "text":
        return {i + len(what) for i in starts if text.startswith(what, i)}
    if kind == "rule":
        return set().union(*(ends[what, i] for i in starts))
    if kind == "or":
        return set().union(*(_ends(each, text, starts, ends) for each in what))
    if kind == "seq":
        for each in what:
            starts = _ends(each, text, starts, ends)
        return starts
    return _repeated_ends(what, *bounds, text, starts, ends)


def _repeated_ends(what, low, high, text, starts, ends):
    found = set(starts) if low == 0 else set()
    for count in range(1, (low + len(text) + 1 if high is None else high) + 1):
        starts = _ends(what, text, starts, ends)
        if count >= low:
            found |= starts
    return found


def grammars():
    """Return a strategy of grammars with one to four rules, recursive or not.

    Each rule allows a text, so that no text leads to where nothing can follow.
    """
    return st.integers(1, 4).flatmap(_rules).filter(_allow_texts)


def _allow_texts(rules):
    known = set()
    for _ in rules:
        known |= {name for name, body in rules.items() if _allows_text(body, known)}
    return known == rules.keys()


def _allows_text(expression, known):
    kind, what, *bounds = expression
    if kind == "rule":
        return what in known
    if kind == "seq":
        return all(_allows_text(each, known) for each in what)
    if kind == "or":
        return any(_allows_text(each, known) for each in what)
    return kind != "times" or bounds[0] == 0 or _allows_text(what, known)


def _rules(num_rules):
    names = ["root", "x", "y", "z"][:num_rules]
    leaves = st.one_of(
        st.tuples(
            st.sampled_from(["chars", "chars", "not"]), st.sampled_from([*LETTERS, "ab", "bé"])
        ),
        st.tuples(st.just("text"), st.text(LETTERS, max_size=3)),
        st.tuples(st.just("rule"), st.sampled_from(names)),
    )
    bounds = st.sampled_from([(0, None), (0, None), (1, None), (0, 1), (2, 2), (1, 3), (2, None)])
    expressions = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["seq", "or"]), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("times"), inner, bounds).map(lambda t: (t[0], t[1], *t[2])),
        ),
        max_leaves=6,
    )
    return st.fixed_dictionaries(dict.fromkeys(names, expressions))
