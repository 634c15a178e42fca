"""Writing a planned slice, from wherever the model's bytes lie.

    model    ..pad [blk.10.attn_q][blk.10.attn_k] pad [blk.10.ffn_up] .. ..        a run: neighbours, read together
                        │               │                  │
    slice    [header][blk.0.attn_q][blk.0.attn_k][blk.0.ffn_up]                    written where the plan says

The bytes are read in blocks, in the order of the model. A slice that comes from far away is written under a name
that the next attempt finds again, with a note beside it of how far it got; each finished tensor is checked
against the manifest if there is one. Nobody sees the slice under its own name before it is complete.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gguf import ReaderTensor

from meshnet_node.engine.gguf_file import ModelFile, hash_tensor
from meshnet_node.errors import ModelFileError, SourceError
from meshnet_node.sources.source import LocalSource, TensorSource

BLOCK_BYTES_MAX = 8 * 1024 * 1024
GAP_BYTES_MAX = 64 * 1024
"""Reading over a gap this small is cheaper than another request."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One tensor's way from the model's file into the slice."""

    tensor: ReaderTensor
    target: int
    """Offset in the slice."""

    @property
    def start(self) -> int:
        """Offset in the model's file."""
        return int(self.tensor.data_offset)

    @property
    def end(self) -> int:
        return self.start + int(self.tensor.n_bytes)


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """A slice before it is written. What no copy fills is a hole."""

    header: bytes
    byte_count: int
    copies: tuple[Copy, ...]

    @property
    def copied_bytes(self) -> int:
        return sum(copy.end - copy.start for copy in self.copies)


@dataclass(frozen=True, slots=True)
class Run:
    """Copies that lie one behind the other in the model's file."""

    start: int
    end: int
    copies: tuple[Copy, ...]


def runs_of(plan: SlicePlan) -> list[Run]:
    """All copies, in the order of the model's file, joined where no large gap lies between them."""
    runs: list[Run] = []
    for copy in sorted(plan.copies, key=lambda copy: copy.start):
        if runs and copy.start - runs[-1].end <= GAP_BYTES_MAX:
            last = runs.pop()
            runs.append(Run(last.start, copy.end, (*last.copies, copy)))
        else:
            runs.append(Run(copy.start, copy.end, (copy,)))
    return runs


def write_slice(model: ModelFile, plan: SlicePlan, target_path: Path) -> None:
    """Raises SourceError, ModelFileError (no room on the disk), OSError."""
    target_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if model.origin is None:
            _write_at_once(model, plan, target_path)
        else:
            _write_resumably(model, plan, target_path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelFileError(
                f"no room on the disk of {target_path.parent}: the layers need {plan.copied_bytes / 1e6:.0f} MB; "
                "free some, or give another --cache-dir, and start again"
            ) from error
        raise


def _write_at_once(model: ModelFile, plan: SlicePlan, target_path: Path) -> None:
    temporary = target_path.with_name(f".{target_path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with temporary.open("w+b") as file:
            _Filler(model, plan, file, LocalSource(model.path)).fill(0)
        temporary.replace(target_path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_resumably(model: ModelFile, plan: SlicePlan, target_path: Path) -> None:
    assert model.origin is not None
    partial = target_path.with_name(f".{target_path.name}.partial")
    note = partial.with_suffix(".done")
    with _sole_writer(partial):
        if target_path.is_file():  # another process has fetched it meanwhile
            return
        done_bytes = _noted(note) if partial.is_file() else 0
        _check_room(plan, done_bytes, target_path.parent)
        with partial.open("r+b" if done_bytes else "w+b") as file:
            _Filler(model, plan, file, model.origin.source, note).fill(done_bytes)
        partial.replace(target_path)
        note.unlink(missing_ok=True)


def _check_room(plan: SlicePlan, done_bytes: int, directory: Path) -> None:
    if plan.copied_bytes - done_bytes > shutil.disk_usage(directory).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _noted(note: Path) -> int:
    try:
        return int(note.read_text())
    except (OSError, ValueError):
        return 0


@contextmanager
def _sole_writer(partial: Path) -> Iterator[None]:
    """Two nodes of one machine that want the same slice: the second waits, and then finds it."""
    with partial.with_suffix(".lock").open("wb") as lock:
        try:
            import fcntl
        except ImportError:  # Windows: two nodes must not share a cache there
            yield
            return
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Filler:
    """Fills one slice's file, block by block."""

    def __init__(
        self, model: ModelFile, plan: SlicePlan, file: BinaryIO, source: TensorSource, note: Path | None = None
    ) -> None:
        self._model = model
        self._plan = plan
        self._file = file
        self._source = source
        self._note = note

    def fill(self, done_bytes: int) -> None:
        """Write header and copies, but for the first ``done_bytes`` of the runs."""
        self._file.write(self._plan.header)
        self._file.truncate(self._plan.byte_count)
        runs = runs_of(self._plan)
        total = sum(run.end - run.start for run in runs)
        passed = 0
        self._report(done_bytes, total)
        for run in runs:
            for start in range(run.start, run.end, BLOCK_BYTES_MAX):
                end = min(start + BLOCK_BYTES_MAX, run.end)
                passed += end - start
                if passed <= done_bytes:
                    continue
                self._scatter(run, start, self._source.read(start, end))
                self._check_finished(run, start, end, keep=passed - (end - run.start))
                self._take_note(passed, total)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _scatter(self, run: Run, start: int, block: bytes) -> None:
        """Put a block's bytes where the plan wants them."""
        view, end = memoryview(block), start + len(block)
        for copy in run.copies:
            first, last = max(copy.start, start), min(copy.end, end)
            if first < last:
                self._file.seek(copy.target + first - copy.start)
                self._file.write(view[first - start : last - start])

    def _check_finished(self, run: Run, start: int, end: int, *, keep: int) -> None:
        """Raises SourceError if a tensor that this block completed is not the one of the manifest."""
        origin = self._model.origin
        if origin is None or origin.manifest is None:
            return
        for copy in run.copies:
            if start < copy.end <= end:
                self._file.seek(copy.target)
                data = self._file.read(copy.end - copy.start)
                if hash_tensor(copy.tensor, data) != origin.manifest.tensors.get(copy.tensor.name):
                    self._write_note(max(0, keep))
                    raise SourceError(
                        f"{copy.tensor.name} arrived damaged: it is not what the model's manifest says; try again, "
                        "and use another source if that does not help"
                    )

    def _take_note(self, passed: int, total: int) -> None:
        if self._note is None:
            return
        # The note must never promise bytes that the disk does not have.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._write_note(passed)
        self._report(passed, total)

    def _report(self, done_bytes: int, total: int) -> None:
        if self._model.origin is not None:
            self._model.origin.on_progress(done_bytes, total)

    def _write_note(self, passed: int) -> None:
        if self._note is not None:
            temporary = self._note.with_suffix(".new")
            temporary.write_text(str(passed))
            temporary.replace(self._note)
