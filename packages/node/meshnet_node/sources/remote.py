"""A model far away, opened as if it were here: its header is fetched, the weights stay where they are.

The header goes into a file as long as the whole model and otherwise empty. It is a hole to the disk; the ``gguf``
package and llama.cpp's tokenizer read it like any model. Slices take their bytes from the source.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from meshnet_node.engine.gguf_file import Manifest, ModelFile, ModelOrigin
from meshnet_node.errors import SourceError
from meshnet_node.sources.header import HEADER_BYTES_MAX, NeedsMoreError, header_length
from meshnet_node.sources.http import HttpSource
from meshnet_node.sources.source import TensorSource

FIRST_READ_BYTES = 1 << 20

Progress = Callable[[int, int], None]


class ReportProgress(Protocol):
    """Makes the progress of one download visible."""

    def __call__(self, what: str) -> Progress: ...


def stand_in_fingerprint(identity: str, byte_count: int) -> str:
    """For a file nobody here has hashed: what its source says of it."""
    return hashlib.sha256(f"{identity}\n{byte_count}".encode()).hexdigest()


def open_http(
    source: HttpSource, file_name: str, cache_dir: Path, progress: ReportProgress, *, identity: str = ""
) -> ModelFile:
    """``identity``: what names the file's contents; the server's validator by default. Raises ModelFileError."""
    file = source.describe()
    if not file.takes_ranges:
        return ModelFile.open(_download(source, file_name, cache_dir, progress))
    fingerprint = stand_in_fingerprint(identity or file.validator or source.url, file.byte_count)
    return open_remote(source, file_name, file.byte_count, fingerprint, cache_dir, progress)


def open_remote(
    source: TensorSource,
    file_name: str,
    byte_count: int,
    fingerprint: str,
    cache_dir: Path,
    progress: ReportProgress,
    manifest: Manifest | None = None,
) -> ModelFile:
    """Fetch the header, unless it is here already. Raises ModelFileError."""
    file_name = Path(file_name).name or "model.gguf"  # strangers do not choose directories here
    path = cache_dir / "headers" / f"{fingerprint[:16]}-{file_name}"
    if not path.is_file() or path.stat().st_size != byte_count:
        _write_header(path, _read_header(source, byte_count), byte_count)
    origin = ModelOrigin(source, file_name, fingerprint, manifest, progress(f"fetching {file_name}"))
    model = ModelFile.open(path, origin=origin)
    if manifest is not None and model.metadata_hashes() != manifest.metadata:
        path.unlink(missing_ok=True)
        raise SourceError(f"the header of {file_name} is not what its manifest says; use another source")
    return model


def _read_header(source: TensorSource, byte_count: int) -> bytes:
    data = source.read(0, min(FIRST_READ_BYTES, byte_count))
    while True:
        try:
            return data[: header_length(data)]
        except NeedsMoreError:
            wanted = min(2 * len(data), byte_count, HEADER_BYTES_MAX)
            if wanted == len(data):
                raise SourceError("the model's header is cut short or damaged; give another source") from None
            data += source.read(len(data), wanted)


def _write_header(path: Path, header: bytes, byte_count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with temporary.open("wb") as file:
            file.write(header)
            file.truncate(byte_count)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _download(source: HttpSource, file_name: str, cache_dir: Path, progress: ReportProgress) -> Path:
    """The whole file, from a server that does not know ranges; fetched once."""
    file = source.describe()
    key = stand_in_fingerprint(file.validator or source.url, file.byte_count)
    path = cache_dir / "downloads" / key[:16] / file_name
    if path.is_file() and path.stat().st_size == file.byte_count:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    report = progress(f"fetching {file_name}, whole")
    try:
        with temporary.open("wb") as target:

            def write(block: bytes) -> None:
                target.write(block)
                report(target.tell(), file.byte_count)

            source.read_whole(write)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
