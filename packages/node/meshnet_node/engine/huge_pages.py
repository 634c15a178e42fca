"""A slice's weights in huge pages of the page cache.

Every decode reads all weights once. In pages of 4 KiB that is a miss of the address cache for each of them, and the
processor's own read-ahead stops at each of their ends; in pages of 2 MiB one token of a 135M model took 11 to 26 %
less time on its two halves, and four at once 3 to 7 % (``benchmarks/huge_pages.py``, AMD EPYC, Linux 6.18, ext4).

llama.cpp maps the file, and the kernel maps huge pages wherever the page cache has them. It has them if the file's
system can (ext4 from Linux 6.16, XFS, Btrfs and others before) and whoever read the file first asked for them. So this
asks, before llama.cpp comes: it maps the file, wishes for huge pages and touches them. What was just written lies
in small pages and is dropped first, which is free, since it is on the disk. Nothing is locked: under pressure the
kernel takes the pages back as it takes any of a file.

Rejected: loading into memory of its own, which the kernel cannot drop, two nodes of one machine cannot share, and
where a slice's holes would cost as much as weights.
"""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

HUGE_PAGE_BYTES = 2 * 1024 * 1024
STRETCH_BYTES = 32 * HUGE_PAGE_BYTES
"""Looked at first, to find out whether it is worth dropping anything."""
_ENOUGH_SHARE = 0.75
"""Of a stretch's huge pages: a few that memory had no room for are not worth reading it again."""


def settle_in_huge_pages(path: Path) -> int:
    """Have the file's data in huge pages of the page cache, as far as the kernel will; holes stay holes.

    Returns how many bytes it maps so: 0 where there is no such thing. Reads the file once if it was not in memory.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE") or path.stat().st_size < HUGE_PAGE_BYTES:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        try:
            view.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            return 0
        huge_bytes = 0
        for start, end in data_stretches(file.fileno()):
            whole_bytes = max(0, end // HUGE_PAGE_BYTES + -start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            _touch(view, start, end)
            if (now := huge_bytes_of(path)) - huge_bytes < _ENOUGH_SHARE * whole_bytes:
                _drop(view, file.fileno(), start, end)
                _touch(view, start, end)
                now = huge_bytes_of(path)
            if whole_bytes and now == huge_bytes:
                break
            huge_bytes = now
        return huge_bytes


def data_stretches(descriptor: int) -> Iterator[tuple[int, int]]:
    """The file's data, without its holes, in pieces worth a look."""
    size, end = os.fstat(descriptor).st_size, 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # no data behind the last hole
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        for first in range(start, end, STRETCH_BYTES):
            yield first, min(first + STRETCH_BYTES, end)


def _touch(view: mmap.mmap, start: int, end: int) -> None:
    for offset in (*range(start, end, HUGE_PAGE_BYTES), end - 1):
        view[offset]


def _drop(view: mmap.mmap, descriptor: int, start: int, end: int) -> None:
    first = start - start % mmap.PAGESIZE
    view.madvise(mmap.MADV_DONTNEED, first, end - first)  # the kernel keeps what is mapped
    os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def huge_bytes_of(path: Path) -> int:
    """How much of this file this process has mapped in huge pages."""
    is_file, total, name = False, 0, os.fsencode(path.resolve())
    with Path("/proc/self/smaps").open("rb") as lines:
        for line in lines:
            if b"-" in line.split(b" ", 1)[0]:  # "start-end perms offset device inode path": a mapping begins
                is_file = line.rstrip(b"\n").endswith(name)
            elif is_file and line.startswith(b"FilePmdMapped:"):
                total += int(line.split()[1]) * 1024
    return total
