"""Native libraries: compiled once, then loaded from the cache; failures are plain errors."""

import ctypes
import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from cpp_compilers import (
    BROKEN,
    COMPLAINT,
    NEEDS_COMPILER,
    broken_compiler,
    counting_compiler,
    run_python,
)
from native_libraries import SETS_HERE
from processes import eventually, is_running

from quire.errors import NativeUnavailableError, PluginLoadError, SettingsError
from quire.native import compiled_cache, library
from quire.native.availability import POOL_SOURCE, native_unavailable_reason
from quire.native.library import NativeLibrary
from quire.native.tracing import trace_calls

pytestmark = NEEDS_COMPILER

SOURCE = Path(__file__).parent / "doubling.cpp"
FUNCTIONS = {"twice": (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty cache, and a process that has the pool and has logged no warning."""
    library._POOL.load()
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_LOGGED", library.LoggedReasons())
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that counts; returns how often it compiled."""
    command, notes = counting_compiler(tmp_path)
    monkeypatch.setenv("CXX", command)
    return lambda: len(notes.read_text().splitlines()) if notes.exists() else 0


def new_library(source=SOURCE):
    return NativeLibrary("doubling", source, FUNCTIONS)


def reason(doubling):
    with pytest.raises(NativeUnavailableError) as caught:
        doubling.load()
    return str(caught.value)


def doubled(functions, count=1001, threads=2):
    numbers = torch.arange(count, dtype=torch.float32)
    functions.twice(numbers.data_ptr(), count, threads)
    return torch.equal(numbers, 2 * torch.arange(count, dtype=torch.float32))


def kept(cache):
    return sorted(cache.iterdir()) if cache.exists() else []


@pytest.mark.parametrize("isa", SETS_HERE)
def test_it_is_compiled_for_each_instruction_set_of_this_machine(monkeypatch, isa, cache):
    monkeypatch.setenv("QUIRE_CPU_ISA", isa)
    assert doubled(new_library().load())
    assert [path.suffixes for path in kept(cache)] == [[f".{isa}", ".so"]]


def test_one_library_is_compiled_once_for_all_callers(compiler):
    doubling = new_library()
    loaded = []
    callers = [threading.Thread(target=lambda: loaded.append(doubling.load())) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert compiler() == 1
    assert all(functions is loaded[0] for functions in loaded)
    assert len(loaded) == 4


def test_what_was_compiled_before_is_not_compiled_again(compiler):
    assert doubled(new_library().load())
    assert doubled(new_library().load())
    assert compiler() == 1


def test_a_header_beside_the_source_counts(compiler, tmp_path):
    source = tmp_path / "doubling.cpp"
    shutil.copy(SOURCE, source)
    new_library(source).load()
    (tmp_path / "more.h").write_text("// something else\n")
    new_library(source).load()
    assert compiler() == 2


def test_an_edit_during_a_compile_is_compiled_next_time(tmp_path, monkeypatch, cache):
    """The compiler comes upon other texts than those that were read."""
    source = tmp_path / "doubling.cpp"
    edited = SOURCE.read_text().replace("*= 2", "*= 3")
    assert edited != SOURCE.read_text()
    (tmp_path / "edited").write_text(edited)
    shutil.copy(SOURCE, source)
    command = tmp_path / "editing-c++"
    real = shutil.which("g++") or shutil.which("c++")
    command.write_text(
        f'#!/bin/sh\ncase "$*" in *" -o "*) cp {tmp_path}/edited {source};; esac\n'
        f'exec {real} "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    assert doubled(new_library(source).load())
    assert source.read_text() == edited
    assert not doubled(new_library(source).load())
    assert len(kept(cache)) == 2


def test_flags_of_the_user_count(compiler, monkeypatch):
    new_library().load()
    monkeypatch.setenv("QUIRE_CXXFLAGS", "-DNOTHING=1 -g")
    assert doubled(new_library().load())
    assert compiler() == 2


def test_what_stands_behind_the_compilers_name_counts(compiler, monkeypatch):
    new_library().load()
    monkeypatch.setenv("CXX", os.environ["CXX"] + " -DNOTHING=1")
    assert doubled(new_library().load())
    assert compiler() == 2
    assert doubled(new_library().load())
    assert compiler() == 2


def test_without_a_compiler_what_another_one_made_is_used(compiler, monkeypatch, caplog):
    caplog.set_level("INFO")
    new_library().load()
    NativeLibrary("the thread pool", POOL_SOURCE, {}).load()
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert native_unavailable_reason() is None
    assert doubled(new_library().load())
    assert "cached kernels of another compiler are used" in caplog.text
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_without_a_compiler_other_sources_are_not_there(compiler, monkeypatch, tmp_path):
    new_library().load()
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    source = tmp_path / "doubling.cpp"
    source.write_text(SOURCE.read_text() + "// changed\n")
    with pytest.raises(NativeUnavailableError, match="no C\\+\\+ compiler found: looked for"):
        new_library(source).load()


def test_without_a_compiler_and_an_empty_cache_nothing_is_expected(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert "/nonexistent/c++" in native_unavailable_reason()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert "looked for g++, c++, clang++; install g++" in native_unavailable_reason()


def test_without_a_compiler_a_library_of_another_program_is_no_reason_to_expect_any(
    monkeypatch, cache
):
    cache.mkdir(parents=True, mode=0o700)
    for name in ("avx512", "avx2", "neon"):
        compiled_cache.keep(("another",), b"x", f".{name}.so", cache)
        (cache / f"x.{name}.so").write_bytes(b"x")
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert "/nonexistent/c++" in native_unavailable_reason()


@pytest.mark.parametrize(
    ("variable", "text"), [("CXX", "g++ '"), ("QUIRE_CXXFLAGS", "'"), ("QUIRE_CXXFLAGS", '-D"a')]
)
def test_a_variable_that_is_no_words_of_a_shell_is_named(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    for attempt in (native_unavailable_reason, new_library().load):
        with pytest.raises(SettingsError, match=f"the variable {variable} cannot be .*No clos"):
            attempt()


@pytest.mark.parametrize("how", BROKEN)
def test_a_compiler_that_does_not_work_is_the_same_reason_each_time(
    how, monkeypatch, tmp_path, caplog, cache
):
    monkeypatch.setenv("CXX", broken_compiler(how, tmp_path))
    libraries = [new_library(), new_library()]
    for doubling in libraries:
        for _ in range(2):
            with pytest.raises(NativeUnavailableError, match="broken-c\\+\\+") as error:
                doubling.load()
            assert doubling.unavailable_reason() == str(error.value)
        assert (COMPLAINT in str(error.value)) == how.startswith("fails")
        assert ("SIGKILL" in str(error.value)) == (how == "is killed")
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    assert kept(cache) == []
    (first, second) = (reason(each).partition("\n")[0] for each in libraries)
    assert first == second


def test_a_long_compiler_output_is_cut_to_its_end(monkeypatch, tmp_path):
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\nseq 1 20000 >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    said = reason(new_library())
    assert said.endswith("19999\n20000")
    assert len(said) < 5000


def test_a_compiler_that_hangs_is_killed_with_its_children(monkeypatch, tmp_path):
    script = tmp_path / "c++"
    pid_file = tmp_path / "pid"
    script.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {pid_file}\nwait\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr("quire.native.compiler.COMPILE_TIMEOUT_S", 0.5)
    assert "did not finish within 0.5 s" in reason(new_library())
    pid = int(pid_file.read_text())
    eventually(lambda: not is_running(pid))  # it was killed, which takes effect at its next turn


def test_a_compiler_that_leaves_a_process_behind_is_not_waited_for(monkeypatch, tmp_path):
    """It is over at once, but what it has started holds its output open."""
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\nsleep 60 &\nexit 0\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr("quire.native.compiler.COMPILE_TIMEOUT_S", 0.5)
    started = time.monotonic()
    assert "did not finish within 0.5 s" in reason(new_library())
    assert time.monotonic() - started < 30


def test_a_compiler_that_writes_no_library_is_reported(monkeypatch, tmp_path):
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\necho 1.0\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    assert reason(new_library()) == f"{script} wrote no library"


def test_a_library_that_cannot_be_loaded_from_the_cache_is_loaded_from_elsewhere(
    compiler, monkeypatch, cache, caplog
):
    real = ctypes.CDLL

    def refuse_the_cache(name):
        if name.startswith(str(cache)):
            raise OSError(f"{name}: failed to map segment from shared object: not permitted")
        return real(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse_the_cache)
    for _ in range(2):
        assert doubled(new_library().load())
    assert compiler() == 2
    assert kept(cache) == []
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"cannot be loaded from {cache}: failed to map segment" in warning.getMessage()


def test_an_error_in_the_source_is_said_with_its_line(tmp_path):
    source = tmp_path / "wrong.cpp"
    source.write_text('#include "export.h"\nEXPORT void f() { nonsense; }\n')
    with pytest.raises(NativeUnavailableError, match=r"wrong.cpp:2:.*nonsense"):
        NativeLibrary("wrong", source, {}).load()


def test_a_function_that_is_not_there_is_the_authors_mistake():
    with pytest.raises(PluginLoadError, match="has no function thrice; is it marked EXPORT"):
        NativeLibrary("doubling", SOURCE, {"thrice": ()}).load()


def test_an_instruction_set_that_is_not_there_is_a_setting_that_cannot_work(monkeypatch):
    monkeypatch.setenv("QUIRE_CPU_ISA", "mmx")
    with pytest.raises(SettingsError, match="mmx"):
        new_library().load()


def test_a_cached_library_that_cannot_be_loaded_is_compiled_again(compiler, cache, caplog):
    new_library().load()
    (path,) = kept(cache)
    rubbish = b"not a library"
    path.unlink()
    name = re.sub(r"-[0-9a-f]+(\.\w+\.so)$", "", path.name)
    hashed = compiled_cache._hash(rubbish)
    (cache / f"{name}-{hashed}{''.join(path.suffixes)}").write_bytes(rubbish)
    assert doubled(new_library().load())
    assert compiler() == 2
    assert "cannot be loaded" in caplog.text


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_home_that_is_read_only_costs_the_cache_only(monkeypatch, tmp_path, caplog):
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(home / "cache"))
    assert doubled(new_library().load())
    assert "not cached" in caplog.text


def test_a_folder_that_cannot_be_used_costs_the_cache_only(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "file"))
    assert doubled(new_library().load())
    assert "QUIRE_CACHE_DIR" in caplog.text


def test_no_place_to_compile_is_a_plain_error(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(NativeUnavailableError, match=r"cannot compile in .*none: No such file"):
        new_library().load()


TOGETHER = f"""
import ctypes
from pathlib import Path
from quire.native.library import NativeLibrary
from quire.native.tracing import trace_calls
types = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
functions = NativeLibrary("doubling", Path({str(SOURCE)!r}), {{"twice": types}}).load()
numbers = (ctypes.c_float * 1000)(*[1.0] * 1000)
functions.twice(ctypes.addressof(numbers), 1000, 1)
print(int(sum(numbers)))
"""


def test_processes_that_start_together_do_not_disturb_each_other(cache):
    results = [None] * 3

    def call(index):
        results[index] = run_python(TOGETHER, {})

    callers = [threading.Thread(target=call, args=(index,)) for index in range(len(results))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [(done.stdout.strip(), done.returncode) for done in results] == [("2000", 0)] * 3
    assert [path.suffix for path in kept(cache)] == [".so"] * 2  # the pool's, too


def test_the_status_of_each_call_is_checked_also_in_replays(tmp_path):
    source = tmp_path / "status.cpp"
    source.write_text(
        '#include "export.h"\nEXPORT int next(int* count) { return ++*count == 3 ? 7 : 0; }\n'
    )

    def check(status, function, arguments):
        if status:
            raise ValueError(f"status {status} of {len(arguments)} argument")

    functions = {"next": (ctypes.c_void_p,)}
    loaded = NativeLibrary("status", source, functions, repeats=True, check=check).load()
    count = ctypes.c_int(1)
    with trace_calls() as calls:
        loaded.next(ctypes.byref(count))
    calls.replay()
    with pytest.raises(ValueError, match="status 7 of 1 argument"):
        calls.replay()
    calls.replay()
    assert count.value == 4
