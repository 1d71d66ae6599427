"""A kernel is compiled only for what the processor reports."""

import re

import pytest

from quire.errors import SettingsError
from quire.machine import instruction_sets
from quire.machine.instruction_sets import (
    INSTRUCTION_SETS,
    bf16_unavailable_reason,
    choose,
    cpu_flags,
    here,
)

AVX2 = frozenset({"sse2", "avx2", "fma", "f16c", "bmi1", "bmi2"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"}
AMX = AVX512 | {"amx_tile", "amx_int8", "amx_bf16", "avx512_vnni", "avx512_bf16"}


@pytest.mark.parametrize(
    ("flags", "architecture", "name"),
    [
        (AMX, "x86_64", "amx"),
        (AMX - {"amx_bf16"}, "x86_64", "avx512"),
        (AVX512, "x86_64", "avx512"),
        (AVX2, "x86_64", "avx2"),
        (AVX512 - {"avx512vl"}, "x86_64", "avx2"),  # the first processors with AVX-512
        (AVX512, "AMD64", "avx512"),
        (frozenset(), "aarch64", "neon"),
        (frozenset(), "arm64", "neon"),
    ],
)
def test_the_widest_that_is_there_is_taken(flags, architecture, name):
    assert choose(flags, architecture).name == name


@pytest.mark.parametrize("missing", ["avx2", "fma", "f16c", "bmi1", "bmi2"])
def test_a_processor_without_one_part_is_refused_with_its_name(missing):
    reason = choose(AVX2 - {missing}, "x86_64")
    assert f"avx2 needs {missing}" in reason


def test_a_family_without_kernels_is_named():
    assert "riscv64" in choose(frozenset(), "riscv64")


def test_one_that_is_asked_for_is_taken_though_there_is_a_wider_one():
    assert choose(AVX512, "x86_64", "avx2").name == "avx2"
    assert choose(AMX, "x86_64", "avx512").name == "avx512"


def test_one_that_the_processor_lacks_is_refused_with_what_is_missing():
    with pytest.raises(SettingsError, match=r"avx512 needs avx512bw, .*unset QUIRE_CPU_ISA"):
        choose(AVX2, "x86_64", "avx512")


@pytest.mark.parametrize(
    ("wanted", "architecture"), [("avx", "x86_64"), ("neon", "x86_64"), ("avx2", "aarch64")]
)
def test_an_unknown_one_is_refused_with_the_known_ones(wanted, architecture):
    with pytest.raises(SettingsError, match=f"QUIRE_CPU_ISA must be one of .*got '{wanted}'"):
        choose(AVX512, architecture, wanted)


@pytest.mark.parametrize(
    ("flags", "architecture", "wanted", "reason"),
    [
        (AVX512 | {"avx512_bf16"}, "x86_64", None, None),
        (AMX, "x86_64", None, None),
        (AVX512, "x86_64", None, "this processor does not report avx512_bf16"),
        (AVX512 | {"amx_bf16"}, "x86_64", None, "this processor does not report avx512_bf16"),
        (AVX512 | {"avx512_bf16"}, "x86_64", "avx2", "kernels for avx2 do not multiply bfloat16"),
        (frozenset({"bf16"}), "aarch64", None, "kernels for neon do not multiply bfloat16"),
        (AVX2 - {"fma"}, "x86_64", None, "amx needs .*; avx512 needs .*; avx2 needs fma"),
    ],
)
def test_bfloat16_is_multiplied_by_kernels_and_a_processor_that_can(
    flags, architecture, wanted, reason
):
    found = bf16_unavailable_reason(choose(flags, architecture, wanted), flags)
    assert found is None if reason is None else re.fullmatch(reason, found)


def test_the_compiler_gets_no_flag_that_is_not_checked():
    for known in INSTRUCTION_SETS:
        used = {flag.removeprefix("-m") for flag in known.compiler_flags if "=" not in flag}
        renamed = {"bmi": "bmi1"}
        assert {renamed.get(flag, flag) for flag in used} <= known.needs


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\nbugs\t: x\n", {"fpu", "avx2", "fma"}),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("nothing that we know\n", set()),
    ],
    ids=["x86", "Arm", "other"],
)
def test_the_system_is_asked_for_flags(monkeypatch, tmp_path, text, flags):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(instruction_sets, "CPU_INFO", file)
    assert cpu_flags() == flags


def test_a_mac_is_asked_in_its_own_way(monkeypatch, tmp_path):
    sysctl = tmp_path / "sysctl"
    sysctl.write_text("#!/bin/sh\necho FPU AVX1.0 FMA F16C\necho AVX2 BMI1 BMI2\n")
    sysctl.chmod(0o755)
    monkeypatch.setattr(instruction_sets, "MAC_SYSCTL", str(sysctl))
    monkeypatch.setattr(instruction_sets.platform, "system", lambda: "Darwin")
    assert choose(cpu_flags(), "x86_64").name == "avx2"


@pytest.mark.parametrize(("value", "flags"), [("1", {"asimddp"}), ("0", set()), ("", set())])
def test_a_mac_with_an_arm_processor_says_whether_it_has_dot_products(
    monkeypatch, tmp_path, value, flags
):
    sysctl = tmp_path / f"sysctl{value}"
    sysctl.write_text(f'#!/bin/sh\n[ "$2" = hw.optional.arm.FEAT_DotProd ] && echo {value}\n')
    sysctl.chmod(0o755)
    monkeypatch.setattr(instruction_sets, "MAC_SYSCTL", str(sysctl))
    monkeypatch.setattr(instruction_sets.platform, "system", lambda: "Darwin")
    assert cpu_flags() == flags
    assert choose(cpu_flags(), "arm64").name == "neon"


def test_without_cpu_info_no_flags_are_assumed(monkeypatch, tmp_path):
    monkeypatch.setattr(instruction_sets, "CPU_INFO", tmp_path / "none")
    assert cpu_flags() == frozenset()


def test_the_environment_names_one(monkeypatch):
    monkeypatch.setenv("QUIRE_CPU_ISA", "mmx")
    with pytest.raises(SettingsError, match="mmx"):
        here()
    monkeypatch.setenv("QUIRE_CPU_ISA", "")
    assert here() == choose(cpu_flags(), instruction_sets.platform.machine())
