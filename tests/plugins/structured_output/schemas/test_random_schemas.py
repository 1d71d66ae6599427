"""Random schemas: each is refused, or its completions are valid for an independent validator."""

import contextlib
import json
import math
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import contract_vocabulary, sample_completion, satisfies
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.outlines.json_schema import schema_regex
from quire_structured_output.outlines.outlines import OutlinesBackend
from quire_structured_output.outlines.supported_keywords import SUPPORTED
from quire_structured_output.schemas.schema_normal_form import normal_form

BACKENDS = [OutlinesBackend(contract_vocabulary()), LLGuidanceBackend(contract_vocabulary())]
COUNTS = st.integers(0, 3)
NAMES = st.sampled_from(["a", "b", 'q"', "é", "$ref", "type"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.sampled_from(["", "x", 'a"\\b', 1.5, 1.0]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=3,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])
LEAVES = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=2),
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "pattern": st.sampled_from(["^a+$", "x|y", '[^"\\\\\\x00-\\x1f]{2}', "a.b", "(b)", "^\\d$"]),
    "format": st.sampled_from(["date", "uuid", "ipv4", "time", "hostname"]),
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "enum": st.lists(VALUES, max_size=3),
    "const": VALUES,
    "minimum": st.integers(-30, 3),
    "exclusiveMaximum": st.integers(-3, 120) | st.floats(-3, 120),
    "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.25, 10]),
    "uniqueItems": st.booleans(),
    "title": st.text(max_size=3),
}


def keywords(inner):
    several = st.lists(inner, min_size=1, max_size=2)
    return LEAVES | {
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "required": st.lists(NAMES, max_size=2),
        "additionalProperties": inner,
        "items": inner | st.just({"type": "string"}),
        "prefixItems": several,
        "anyOf": several,
        "oneOf": several,
        "allOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "é"]), inner, max_size=2),
        "propertyNames": inner,
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2),
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "unevaluatedProperties": inner,
    }


def schemas(options):
    some = st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=3, unique=True)
    return some.flatmap(lambda words: st.fixed_dictionaries({w: options[w] for w in words}))


SCHEMAS = st.recursive(
    schemas(LEAVES) | st.booleans(), lambda inner: schemas(keywords(inner)), max_leaves=5
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 99), st.sampled_from(BACKENDS))
def test_a_schema_is_refused_or_its_completions_are_valid(schema, seed, backend):
    try:
        grammar = backend.compile(StructuredOutputsParams(json=schema))
    except GrammarError:
        return
    is_valid = satisfies(schema)
    for child in range(3):
        rng = random.Random(100 * seed + child)
        try:
            text = sample_completion(grammar.matcher(), rng, backend.vocabulary)
        except AssertionError as error:
            if "no EOS token" in str(error):  # a walk at random may not find the end
                continue
            raise
        if has_infinite_number(text):  # of which the validator knows no multiples
            continue
        assert is_valid(text), text


def has_infinite_number(text):
    numbers = []
    json.loads(text, parse_float=lambda digits: numbers.append(float(digits)))
    return any(map(math.isinf, numbers))


WORDS = st.sampled_from(sorted(SUPPORTED)) | st.sampled_from(["#", "#/oneOf/0", "object", "string"])
GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(WORDS, GARBAGE, max_size=3))
def test_nonsense_is_refused_and_nothing_else_happens(schema):
    with contextlib.suppress(GrammarError):
        schema_regex(schema)
    with contextlib.suppress(GrammarError):
        normal_form(schema)
