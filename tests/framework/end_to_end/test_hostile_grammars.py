"""Hostile grammars beside other requests: each ends by itself, and no other completion changes."""

import asyncio

import pytest

from quire import AsyncEngine, SamplingParams
from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow

DOUBLED = {
    f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}}
    for i in range(20)
} | {"d20": {}}
HOSTILE = (
    {"regex": "((a+)+)+b"},
    {"regex": "((a{0,1000}){0,1000}){0,1000}"},
    {"regex": "[ab]*a[ab]{24}", "backend": "outlines"},
    {"regex": "(" * 15_000 + ")" * 15_000},
    {"choice": tuple(map(str, range(100_000)))},
    {"grammar": 'root ::= root root | "a" | ""'},
    {"grammar": "start: start"},
    {"grammar": 'root ::= (("a"{0,1000}){0,1000}){0,1000}'},
    {"grammar": "root ::= undefined"},
    {"json": {"enum": list(range(15_000))}},
    {"json": '{"items":' * 10_000 + "{}" + "}" * 10_000},
    {"json": {"$ref": "#"}},
    {"json": {"$ref": "http://example.com"}},
    {"json": {"type": "string", "minLength": 2**31 - 1}, "backend": "outlines"},
    {"json": {"not": {"$ref": "#/$defs/d0"}, "$defs": DOUBLED}},
    {"json": {"properties": {f"p{i}": {"type": "integer"} for i in range(5_000)}}},
    {"json": {"allOf": [{"type": "integer", "multipleOf": n} for n in (99_991, 99_989, 99_971)]}},
    {"json": {"patternProperties": {f"^a.*{i}.*b": {} for i in range(300)}}},
    {"structural_tag": {"format": {"type": "regex", "pattern": "(a|a)*b"}}},
)
OTHERS = (
    None,
    StructuredOutputsParams(regex="[a-f]{30}"),
    StructuredOutputsParams(json={"type": "array", "items": {"type": "boolean"}, "minItems": 9}),
)


def params_of(constraint, seed):
    return SamplingParams(
        structured_outputs=constraint, seed=seed, temperature=2.0, max_tokens=40, ignore_eos=True
    )


async def others(engine):
    requests = [
        engine.generate_whole("x", params_of(constraint, seed))
        for seed in range(4)
        for constraint in OTHERS
    ]
    return [result.outputs[0].token_ids for result in await asyncio.gather(*requests)]


async def outcome(engine, fields):
    try:
        result = await engine.generate_whole("x", params_of(StructuredOutputsParams(**fields), 1))
    except GrammarError as error:
        return str(error)
    return result.outputs[0].finish_reason


def test_no_other_completion_changes_beside_hostile_grammars(tmp_path):
    folder = write_checkpoint(tmp_path, "Qwen3ForCausalLM").folder

    async def main():
        engine = AsyncEngine(str(folder), max_model_len=128, grammar_timeout_s=2)
        try:
            alone = await others(engine)
            hostile = [outcome(engine, fields) for fields in HOSTILE]
            *outcomes, beside = await asyncio.gather(*hostile, others(engine))
            return alone, beside, outcomes, await others(engine)
        finally:
            await engine.shutdown()

    alone, beside, outcomes, after = asyncio.run(main())
    assert alone == beside == after
    assert len(outcomes) == len(HOSTILE)
    assert all(outcomes)
