"""What ``meshnet model`` shows and does: which models are here, what one is made of, what a cut would need."""

from dataclasses import dataclass
from pathlib import Path

from meshnet_node.engine.api import EngineOptions, MemoryNeed, ModelFile, cached_slice, check_cut, memory_need
from meshnet_node.errors import LayerKindsError, ModelFileError
from meshnet_node.model_source import MODEL_PACKAGES, resolve_model
from meshnet_protocol.layers import LayerRange


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A model file, or some layers of one, on this machine."""

    name: str
    kind: str
    """package, download, or layers."""
    byte_count: int
    """On the disk; holes left out."""
    path: Path


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
            found.append(_kept(name, "package", resolve_model(name)))
        except ModelFileError:
            continue
    found += [_kept(path.stem, "download", path) for path in sorted((cache_dir / "downloads").glob("*/*.gguf"))]
    found += [_kept(path.stem, "layers", path) for path in sorted((cache_dir / "slices").glob("[!.]*.gguf"))]
    return found


def _kept(name: str, kind: str, path: Path) -> KeptFile:
    state = path.stat()
    blocks = getattr(state, "st_blocks", None)
    return KeptFile(name, kind, state.st_size if blocks is None else min(state.st_size, blocks * 512), path)


def pull(model: ModelFile, layers: LayerRange | None, cache_dir: Path) -> Path:
    """Fetch and keep these layers, so that a node starts at once later. Raises NodeError."""
    return cached_slice(model, layers or LayerRange(0, model.layer_count - 1), cache_dir)


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
