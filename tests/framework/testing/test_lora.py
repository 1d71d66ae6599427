"""The kit of LoRA sources notices a source that is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from one_file_source import HashesWithTorch, OneFile
from safetensors.torch import save_file

from quire.testing.lora import LoRASourceContract


class Contract(LoRASourceContract):
    source_class = OneFile

    def options(self, root):
        return {"root": str(root)}

    def write(self, root, name, modules, base_model):
        (root / name).mkdir()
        told = {"base_model": base_model, "scales": {n: pair.scale for n, pair in modules.items()}}
        tensors = {f"{n} a": pair.a for n, pair in modules.items()}
        tensors |= {f"{n} b": pair.b for n, pair in modules.items()}
        save_file(tensors, root / name / "all", {"told": json.dumps(told)})
        return name


class TestOneFile(Contract):
    """A right source passes."""


def reading(change):
    """A source whose `read` is changed."""
    read = OneFile.read

    class Changed(OneFile):
        def read(self, folder, max_rank):
            return change(read(self, folder, max_rank))

    return Changed


def with_modules(change):
    return reading(
        lambda adapter: replace(
            adapter, modules={name: change(pair) for name, pair in adapter.modules.items()}
        )
    )


class SameHash(OneFile):
    def content_hash(self, folder):
        return "always"


class HashOfPath(OneFile):
    def content_hash(self, folder):
        return str(folder)


class AnyRank(OneFile):
    def read(self, folder, max_rank):
        return super().read(folder, 1000)


class AnyOption(OneFile):
    @classmethod
    def from_options(cls, options):
        return cls(Path(options["root"]))


class AnyName(OneFile):
    def resolve(self, name):
        return self.root


class RaisesItsOwn(OneFile):
    def read(self, folder, max_rank):
        (folder / "all").read_bytes()[1000]
        return super().read(folder, max_rank)


@pytest.mark.parametrize(
    ("source", "test"),
    [
        (with_modules(lambda pair: replace(pair, scale=1.0)), "the_matrices"),
        (with_modules(lambda pair: replace(pair, a=pair.b.T, b=pair.a.T)), "the_matrices"),
        (reading(lambda a: replace(a, modules=dict([*a.modules.items()][:1]))), "the_matrices"),
        (with_modules(lambda pair: replace(pair, a=pair.a.int())), "matrices_are_on_the_cpu"),
        (with_modules(lambda pair: replace(pair, b=pair.b / 0)), "matrices_are_on_the_cpu"),
        (reading(lambda adapter: replace(adapter, base_model=None)), "the_base_model_is_passed"),
        (reading(lambda adapter: replace(adapter, content_hash="x")), "the_hash_belongs"),
        (SameHash, "the_hash_belongs"),
        (HashOfPath, "the_hash_belongs"),
        (AnyRank, "a_rank_beyond_the_limit"),
        (AnyOption, "an_unknown_option"),
        (AnyName, "an_unknown_name"),
        (RaisesItsOwn, "a_damaged_file"),
    ],
)
def test_a_wrong_source_fails(source, test, tmp_path):
    class Wrong(Contract):
        source_class = source

    (name,) = [name for name in dir(Wrong) if name.startswith(f"test_{test}")]
    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        getattr(Wrong(), name)(tmp_path)


def test_a_source_that_needs_torch_to_hash_fails(tmp_path):
    class Wrong(Contract):
        source_class = HashesWithTorch

    with pytest.raises(AssertionError, match="imports torch"):
        Wrong().test_hashing_needs_no_torch(tmp_path)
