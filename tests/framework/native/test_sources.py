"""Source texts are read once, so the hashed text is the compiled text."""

import pytest

from quire.native.sources import HEADERS, Sources


@pytest.fixture
def source(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "beside.h").write_text("// beside\n")
    path = tmp_path / "own" / "kernel.cpp"
    path.write_text("// kernel\n")
    return path


def test_a_source_comes_with_the_headers_beside_it_and_quires(source):
    sources = Sources.read(source)
    assert sources.main == "source/kernel.cpp"
    assert sources.texts["source/beside.h"] == "// beside\n"
    assert sources.texts["include/vec.h"] == (HEADERS / "vec.h").read_text()


def test_what_is_written_is_what_was_read_whatever_was_edited_since(source, tmp_path):
    sources, folder = Sources.read(source), tmp_path / "folder"
    source.write_text("// edited\n")
    folder.mkdir()
    sources.write(folder)
    written = {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}
    assert written == sources.texts
    assert written[sources.main] == "// kernel\n"


@pytest.mark.parametrize(
    "change",
    [lambda source: source.write_text("// other\n"),
     lambda source: source.with_name("beside.h").write_text("// other\n"),
     lambda source: source.with_name("beside.h").rename(source.with_name("moved.h")),
     lambda source: source.with_name("new.h").write_text("")],
    ids=["the source", "a header", "a header's name", "a new header"],
)  # fmt: skip
def test_any_other_text_or_name_makes_other_parts(source, change):
    before = Sources.read(source).parts
    assert Sources.read(source).parts == before
    change(source)
    assert Sources.read(source).parts != before


def test_a_header_of_the_same_name_as_one_of_quires_is_another_file(source):
    source.with_name("vec.h").write_text("// not quire's\n")
    texts = Sources.read(source).texts
    assert texts["source/vec.h"] != texts["include/vec.h"]


def test_files_that_swap_their_texts_or_their_names_are_other_sources():
    one = Sources("source/a.cpp", {"source/a.cpp": "// 1\n", "source/b.h": "// 2\n"})
    swapped = Sources("source/a.cpp", {"source/a.cpp": "// 2\n", "source/b.h": "// 1\n"})
    renamed = Sources("source/a.cpp", {"source/a.cpp": "// 1\n", "source/c.h": "// 2\n"})
    assert len({one.parts, swapped.parts, renamed.parts}) == 3
    turned = Sources("source/a.cpp", dict(reversed(one.texts.items())))
    assert turned.parts == one.parts
