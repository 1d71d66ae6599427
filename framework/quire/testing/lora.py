"""Conformance kit of LoRA sources: lookup, content hashes and reading of adapters.

    from quire.testing.lora import LoRASourceContract

    class TestShelf(LoRASourceContract):
        source_class = Shelf

        def options(self, root):
            return {"root": str(root)}

        def write(self, root, name, modules, base_model):
            write_my_layout(root / name, modules, base_model)
            return name

pytest collects the inherited tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import ClassVar

import pytest
import torch

from quire.errors import AdapterError, SettingsError
from quire.interfaces.lora import Adapter, AdapterModule, LoRASource
from quire.testing.torch_imports import imports_torch

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj")
MAX_RANK = 8
BASE_MODEL = "acme/base"


class LoRASourceContract:
    """Tests that a LoRA source must pass.

    Attributes:
        source_class: LoRA source under test.
        ranks: Ranks of two modules that its layout can hold in one adapter.
        has_base_model: Whether its layout names the model that an adapter was trained on.
    """

    source_class: ClassVar[type[LoRASource]]
    ranks: ClassVar[tuple[int, int]] = (4, 4)
    has_base_model: ClassVar[bool] = True

    def options(self, root: Path) -> Mapping[str, str]:
        """Return the options of a source whose adapters are under `root`; by default none."""
        del root
        return {}

    def write(
        self, root: Path, name: str, modules: Mapping[str, AdapterModule], base_model: str
    ) -> str:
        """Write an adapter in the source's layout under `root`.

        Args:
            root: Empty folder, or one with other adapters.
            name: Name of the adapter, a plain word.
            modules: Float32 matrices by module name.
            base_model: Model that it was trained on.

        Returns:
            What a user passes to `--lora-modules` for it, and `resolve` gets.
        """
        raise NotImplementedError("a test class of LoRASourceContract defines `write`")

    def test_the_matrices_are_those_that_were_written(self, tmp_path: Path) -> None:
        """Compare scale * B @ A of every module, by the names of the checkpoint."""
        written = self._modules()
        adapter = self._read(tmp_path, written)
        assert set(adapter.modules) == set(written), (
            f"modules {sorted(adapter.modules)} were read; expected {sorted(written)}, the names "
            "of the checkpoint's layers"
        )
        for name, module in adapter.modules.items():
            expected, found = _delta(written[name]), _delta(module)
            assert found.shape == expected.shape, (
                f"{name}: B @ A has shape {tuple(found.shape)}; expected {tuple(expected.shape)}, "
                "[out_features, in_features]"
            )
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), (
                f"{name}: scale * B @ A differs from what was written by up to "
                f"{float((found - expected).abs().max()):.6f}"
            )

    def test_matrices_are_on_the_cpu_and_finite(self, tmp_path: Path) -> None:
        """Matrices are finite and on the CPU; quire copies them to the device."""
        for name, module in self._read(tmp_path, self._modules()).modules.items():
            for side, matrix in (("a", module.a), ("b", module.b)):
                assert matrix.device.type == "cpu", f"{name}.{side} is on {matrix.device}, not cpu"
                assert matrix.is_floating_point(), f"{name}.{side} has dtype {matrix.dtype}"
                assert bool(matrix.isfinite().all()), f"{name}.{side} has NaN or infinity"

    def test_the_base_model_is_passed_on(self, tmp_path: Path) -> None:
        """`base_model` is returned; quire compares it with the served model."""
        expected = BASE_MODEL if self.has_base_model else None
        found = self._read(tmp_path, self._modules()).base_model
        assert found == expected, f"base_model is {found!r}; expected {expected!r}"

    def test_the_hash_belongs_to_the_content(self, tmp_path: Path) -> None:
        """`read` and a copy have the same hash, and any other element changes it."""
        modules = self._modules()
        source, folder = self._written(tmp_path, modules)
        content_hash = source.content_hash(folder)
        assert source.content_hash(folder) == content_hash, "two calls give two hashes"
        read = source.read(folder, MAX_RANK).content_hash
        assert read == content_hash, f"read() gives {read!r}, content_hash() {content_hash!r}"
        copied = copytree(folder, tmp_path / "copied")
        assert source.content_hash(copied) == content_hash, "a copy has another hash"
        for number, changed in enumerate(self._changed(modules)):
            other, other_folder = self._written(tmp_path / f"changed{number}", changed)
            assert other.content_hash(other_folder) != content_hash, (
                "an adapter with another matrix or scale has the same hash, so the prefix cache "
                "would confuse the two"
            )

    def test_hashing_needs_no_torch(self, tmp_path: Path) -> None:
        """A server hashes adapters in a process that has no torch."""
        folder = self._written(tmp_path, self._modules())[1]
        code = (
            "from pathlib import Path; from pkgutil import resolve_name; "
            "source = resolve_name(sys.argv[1]); "
            "made = source.from_options(dict(zip(sys.argv[3::2], sys.argv[4::2]))); "
            "made.content_hash(Path(sys.argv[2]))"
        )
        options = [text for pair in self.options(tmp_path).items() for text in pair]
        reference = f"{self.source_class.__module__}:{self.source_class.__qualname__}"
        assert not imports_torch(code, reference, str(folder), *options), (
            "from_options() or content_hash() imports torch"
        )

    def test_an_unknown_name_is_refused(self, tmp_path: Path) -> None:
        """`resolve` raises an `AdapterError` with the name."""
        with pytest.raises(AdapterError, match="no-such-adapter"):
            self._source(tmp_path).resolve("no-such-adapter")

    def test_an_unknown_option_is_refused(self, tmp_path: Path) -> None:
        """`from_options` raises a `SettingsError` that names the option."""
        with pytest.raises(SettingsError, match="no_such_option"):
            self.source_class.from_options({**self.options(tmp_path), "no_such_option": "1"})

    def test_a_rank_beyond_the_limit_is_refused(self, tmp_path: Path) -> None:
        """A rank above `max_rank` raises an `AdapterError`."""
        source, folder = self._written(tmp_path, self._modules())
        with pytest.raises(AdapterError):
            source.read(folder, max(self.ranks) - 1)

    def test_a_damaged_file_is_refused(self, tmp_path: Path) -> None:
        """With a truncated or missing file, `read` raises an `AdapterError` or is not affected."""
        source, folder = self._written(tmp_path, self._modules())
        whole = source.read(folder, MAX_RANK)
        for damaged, what in _damages(folder, tmp_path / "damaged"):
            try:
                read = source.read(damaged, MAX_RANK)
            except AdapterError:
                continue
            same = {name: _delta(module) for name, module in read.modules.items()}
            for name, module in whole.modules.items():
                assert name in same, f"{what}: {name} is missing and nothing is raised"
                assert torch.equal(same[name], _delta(module)), (
                    f"{what}: the matrices of {name} changed and nothing is raised"
                )

    def _source(self, root: Path) -> LoRASource:
        return self.source_class.from_options(self.options(root))

    def _written(self, root: Path, modules: Mapping[str, AdapterModule]) -> tuple[LoRASource, Path]:
        root.mkdir(parents=True, exist_ok=True)
        name = self.write(root, "adapter", modules, BASE_MODEL)
        source = self._source(root)
        folder = source.resolve(name)
        assert folder.is_dir(), f"resolve({name!r}) returned {folder}, which is not a folder"
        return source, folder

    def _read(self, root: Path, modules: Mapping[str, AdapterModule]) -> Adapter:
        source, folder = self._written(root, modules)
        return source.read(folder, MAX_RANK)

    def _modules(self) -> dict[str, AdapterModule]:
        generator = torch.Generator().manual_seed(5)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        shapes = zip(MODULES, self.ranks, ((24, 16), (16, 40)), strict=True)
        return {
            name: AdapterModule(random(rank, inputs), random(outputs, rank), 2.0)
            for name, rank, (outputs, inputs) in shapes
        }

    @staticmethod
    def _changed(modules: Mapping[str, AdapterModule]) -> Iterator[dict[str, AdapterModule]]:
        name, module = next(iter(modules.items()))
        yield {**modules, name: replace(module, a=module.a + 1)}
        yield {**modules, name: replace(module, b=module.b + 1)}
        yield {key: replace(value, scale=value.scale * 2) for key, value in modules.items()}


def _delta(module: AdapterModule) -> torch.Tensor:  # [out_features, in_features]
    return module.scale * (module.b.float() @ module.a.float())


def _damages(folder: Path, target: Path) -> Iterator[tuple[Path, str]]:
    """Yield copies of an adapter with one file truncated, empty or missing, and its description."""
    kinds: dict[str, Callable[[Path], object]] = {
        "half of": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        "nothing in": lambda file: file.write_bytes(b""),
        "no": lambda file: file.unlink(),
    }
    files = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
    for number, file in enumerate(files):
        for kind, damage in kinds.items():
            copied = Path(copytree(folder, target / f"{number}{kind.split()[0]}"))
            damage(copied / file)
            yield copied, f"{kind} {file}"
