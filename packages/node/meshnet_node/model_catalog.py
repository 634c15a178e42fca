"""What ``meshnet model`` shows and does: which models are here, what one is made of, what a cut would need."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from meshnet_node.engine.api import (
    SLICE_FORMAT,
    EngineOptions,
    MemoryNeed,
    ModelFile,
    cached_slice,
    check_cut,
    memory_need,
    read_slice_name,
)
from meshnet_node.errors import LayerKindsError, ModelFileError
from meshnet_node.model_source import MODEL_PACKAGES, package_parts, resolve_model
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import ModelCard, SharedFile


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A model file, or some layers of one, on this machine."""

    name: str
    """Of layers: the model's key."""
    kind: str
    """package, download, layers, or outdated: layers that an earlier meshnet made, and no node loads any more."""
    byte_count: int
    """On the disk; holes left out."""
    path: Path
    used_at: float = 0.0
    """Unix time at which it was made, or a node last loaded it."""
    layers: str = "all"


@dataclass(frozen=True, slots=True)
class CutNeed:
    """What the two sides of a cut would need."""

    cut: int
    sides: tuple[tuple[LayerRange, MemoryNeed], ...]
    problem: str = ""
    """Why the model cannot be cut here; empty if it can."""


def kept_files(cache_dir: Path) -> list[KeptFile]:
    """Everything that a node here would not have to fetch again."""
    found = []
    for name in sorted(MODEL_PACKAGES):
        try:
            parts = package_parts(name)
        except ModelFileError:
            continue
        path = parts[0] if len(parts) == 1 else parts[0].parent
        found.append(KeptFile(name, "package", sum(part.stat().st_size for part in parts), path))
    found += [
        _kept(path.stem, "package, put together", path) for path in sorted((cache_dir / "packages").glob("*.gguf"))
    ]
    found += [_kept(path.stem, "download", path) for path in sorted((cache_dir / "downloads").glob("*/*.gguf"))]
    found += [_kept_layers(path) for path in (cache_dir / "slices").glob("[!.]*.gguf")]
    return sorted(found, key=lambda file: (file.kind != "package", file.name, file.kind, _layers_order(file)))


def _layers_order(file: KeptFile) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", file.layers)]


def _kept_layers(path: Path) -> KeptFile:
    name = read_slice_name(path)
    if name is None:
        return _kept(path.stem, "outdated", path)
    kind = "layers" if name.slice_format == SLICE_FORMAT else "outdated"
    return replace(_kept(name.model_key, kind, path), layers=str(name.layers))


def _kept(name: str, kind: str, path: Path) -> KeptFile:
    state = path.stat()
    blocks = getattr(state, "st_blocks", None)
    byte_count = state.st_size if blocks is None else min(state.st_size, blocks * 512)
    return KeptFile(name, kind, byte_count, path, state.st_mtime)


def unused_files(cache_dir: Path, *, since: float) -> list[KeptFile]:
    """What could be made or fetched again and no node has loaded since then: slices, downloads, unfinished ones too.

    Packages stay; headers are small and are what a model is known by.
    """
    patterns = ("slices/*", "slices/.*", "downloads/*/*", "downloads/*/.*", "packages/*.gguf")
    files = {path for pattern in patterns for path in cache_dir.glob(pattern) if path.is_file()}
    kept = [_kept(path.name, "unused", path) for path in sorted(files)]
    return [file for file in kept if file.used_at < since]


def delete(files: Iterable[KeptFile]) -> int:
    """Bytes that are free again. A node that still uses one of them goes on undisturbed. Raises ModelFileError."""
    freed = 0
    for file in files:
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            raise ModelFileError(f"{file.path} cannot be deleted ({error.strerror})") from error
        freed += file.byte_count
    return freed


def pull(model: ModelFile, layers: LayerRange | None, cache_dir: Path) -> Path:
    """Fetch and keep these layers, so that a node starts at once later. Raises NodeError."""
    return cached_slice(model, layers or LayerRange(0, model.layer_count - 1), cache_dir)


@dataclass(frozen=True, slots=True)
class WholeModel:
    """A model file on this machine, and all that others must know to fetch and check parts of it."""

    path: Path
    card: ModelCard
    shared: SharedFile
    manifest: bytes


def whole_models(text: str, cache_dir: Path) -> list[WholeModel]:
    """The model that ``text`` names, or all those in a folder; hashes each file the first time. Raises NodeError."""
    folder = Path(text).expanduser()
    paths = sorted(folder.glob("*.gguf")) if folder.is_dir() else [resolve_model(text, cache_dir)]
    if not paths:
        raise ModelFileError(f"there is no .gguf file in {folder}")
    return [_whole_model(ModelFile.open(path), cache_dir) for path in paths]


def _whole_model(model: ModelFile, cache_dir: Path) -> WholeModel:
    shared = SharedFile(
        file_name=model.path.name,
        byte_count=model.path.stat().st_size,
        fingerprint=model.fingerprint(cache_dir),
        has_manifest=True,
    )
    manifest = msgspec.json.encode(model.cached_manifest(cache_dir))
    return WholeModel(model.path, model.card(cache_dir), shared, manifest)


def needs_at(model: ModelFile, cuts: list[int], options: EngineOptions) -> list[CutNeed]:
    """For each cut, what a node with the layers before it and one with those from it on would need.

    Raises LayersError for a cut outside the model, UnsupportedArchitectureError.
    """
    return [_needs_at(model, cut, options) for cut in cuts]


def _needs_at(model: ModelFile, cut: int, options: EngineOptions) -> CutNeed:
    model.check_range(LayerRange(max(cut, 0), max(cut, 0)))
    whole = LayerRange(0, model.layer_count - 1)
    pieces = whole.cut_at({cut})
    try:
        for piece in pieces:
            check_cut(model, piece)
    except LayerKindsError as error:
        return CutNeed(cut, (), str(error))
    return CutNeed(cut, tuple((piece, memory_need(model, [piece], options)) for piece in pieces))


def default_cuts(model: ModelFile) -> list[int]:
    """A quarter, a half and three quarters of the way."""
    return sorted({model.layer_count * part // 4 for part in (1, 2, 3)} - {0})
