import mmap
import os
from pathlib import Path

import pytest

from meshnet_node.engine.api import EngineOptions, ModelFile
from meshnet_node.engine.gguf_slice import slice_path
from meshnet_node.engine.huge_pages import (
    HUGE_PAGE_BYTES,
    STRETCH_BYTES,
    data_stretches,
    huge_bytes_of,
    settle_in_huge_pages,
)
from meshnet_node.engine.shard import load_generation
from meshnet_protocol.layers import LayerRange


def sparse_file(path: Path, *, data_pages: int, hole_pages: int) -> bytes:
    """Data, a hole, and as much data again, written in small pages; returns the data."""
    data = os.urandom(HUGE_PAGE_BYTES) * data_pages
    with path.open("wb", buffering=0) as file:
        for _ in range(2):
            for start in range(0, len(data), mmap.PAGESIZE):
                file.write(data[start : start + mmap.PAGESIZE])
            file.seek(hole_pages * HUGE_PAGE_BYTES, os.SEEK_CUR)
        os.fsync(file.fileno())
    return data


@pytest.fixture
def needs_huge_pages(tmp_path: Path) -> None:
    """Asks the kernel itself, with a file that nobody has read yet."""
    path = tmp_path / "probe"
    sparse_file(path, data_pages=1, hole_pages=0)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            view.madvise(mmap.MADV_HUGEPAGE)
            view[0]
            if not huge_bytes_of(path):
                pytest.skip("this kernel has no huge pages for the files of this disk")


@pytest.mark.usefixtures("needs_huge_pages")
def test_weights_are_mapped_in_huge_pages_and_are_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "slice.gguf"
    data = sparse_file(path, data_pages=4, hole_pages=0)

    huge_bytes = settle_in_huge_pages(path)

    assert path.read_bytes() == data + data
    assert huge_bytes == len(data + data)
    assert settle_in_huge_pages(path) == huge_bytes


@pytest.mark.usefixtures("needs_huge_pages")
def test_a_loaded_segment_has_its_weights_there(model: ModelFile, tmp_path: Path) -> None:
    layers = LayerRange(10, 19)

    generation = load_generation(model, layers, [layers], EngineOptions(tmp_path), number=0)
    try:
        path = slice_path(model, layers, tmp_path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            data = list(data_stretches(file.fileno()))
            for start, end in data:  # as a decode would
                for offset in range(start, end, mmap.PAGESIZE):
                    view[offset]
            assert huge_bytes_of(path) > 0.5 * sum(end - start for start, end in data)
    finally:
        generation.close()


def test_the_holes_of_a_slice_are_not_brought_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "slice.gguf"
    data = sparse_file(path, data_pages=2, hole_pages=64)

    with path.open("rb") as file:
        stretches = list(data_stretches(file.fileno()))

    assert stretches == [(0, len(data)), (path.stat().st_size - len(data), path.stat().st_size)]
    assert settle_in_huge_pages(path) <= 2 * len(data)


def test_long_data_is_looked_at_in_stretches(tmp_path: Path) -> None:
    path = tmp_path / "slice.gguf"
    size = STRETCH_BYTES + HUGE_PAGE_BYTES
    path.write_bytes(bytes(size))

    with path.open("rb") as file:
        assert list(data_stretches(file.fileno())) == [(0, STRETCH_BYTES), (STRETCH_BYTES, size)]


def test_a_file_smaller_than_a_huge_page_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "slice.gguf"
    path.write_bytes(b"small")

    assert settle_in_huge_pages(path) == 0


def test_a_file_in_memory_already_does_no_harm() -> None:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        pytest.skip("no RAM disk here")
    path = folder / f"meshnet-test-{os.getpid()}"
    try:
        data = sparse_file(path, data_pages=1, hole_pages=1)

        settle_in_huge_pages(path)

        assert path.read_bytes().startswith(data)
    finally:
        path.unlink(missing_ok=True)
