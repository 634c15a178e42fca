"""What keys and values are held in: exact for any grouping of rows, quick, and known to GPUs."""

from pathlib import Path

import pytest
from gguf import GGUFWriter

from meshnet_node.engine.cache_types import cache_types
from meshnet_node.engine.gguf_file import ModelFile
from node.engine_helpers import write_tiny_model


def with_heads_of(size: int, folder: Path) -> ModelFile:
    def extend(writer: GGUFWriter) -> None:
        writer.add_key_length(size)
        writer.add_value_length(size)

    return ModelFile.open(write_tiny_model(folder / "tiny.gguf", extend=extend))


@pytest.mark.parametrize(
    ("head_size", "is_exact", "on_gpu", "types"),
    [
        (64, True, False, "Q8_0 keys, F16 values"),
        (80, True, False, "BF16 keys, F16 values"),
        (64, True, True, "Q8_0"),
        (80, True, True, "BF16"),
        (64, False, False, "F16"),
        (64, False, True, "F16"),
    ],
)
def test_types_follow_from_heads_and_device(
    tmp_path: Path, head_size: int, is_exact: bool, on_gpu: bool, types: str
) -> None:
    model = with_heads_of(head_size, tmp_path)

    assert str(cache_types(model, is_exact=is_exact, on_gpu=on_gpu)) == types


def test_heads_are_as_large_as_the_file_says_whatever_the_hidden_size_is(tmp_path: Path) -> None:
    """Where it says nothing, heads share the hidden states."""
    model = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf"))

    assert model.head_size("key") == 32
    assert model.head_size("value") == 32
