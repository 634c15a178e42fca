import os
from pathlib import Path

import pytest

from meshnet_node.engine.huge_pages import HUGE_PAGE_BYTES, STRETCH_BYTES, data_stretches, settle_in_huge_pages


def sparse_file(path: Path, *, data_pages: int, hole_pages: int) -> bytes:
    """Data, a hole, and as much data again; returns the data."""
    data = os.urandom(HUGE_PAGE_BYTES) * data_pages
    with path.open("wb") as file:
        file.write(data)
        file.seek(hole_pages * HUGE_PAGE_BYTES, os.SEEK_CUR)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return data


def test_weights_are_mapped_in_huge_pages_and_are_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "slice.gguf"
    data = sparse_file(path, data_pages=4, hole_pages=0)

    huge_bytes = settle_in_huge_pages(path)

    assert path.read_bytes() == data + data
    if not huge_bytes:
        pytest.skip("this kernel has no huge pages for the files of this disk")
    assert huge_bytes == len(data + data)
    assert settle_in_huge_pages(path) == huge_bytes


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
