"""What a slice holds, what it leaves out, and which files are refused."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from meshnet_node.engine.architectures import VERIFIED_ARCHITECTURES
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import cached_slice, slice_layers
from meshnet_node.errors import LayersError, ModelFileError, UnsupportedArchitectureError
from meshnet_node.model_source import resolve_model
from meshnet_protocol.layers import LayerRange
from node.engine_helpers import TINY_HIDDEN, write_tiny_model


def layer_names(model: ModelFile) -> set[int]:
    return {int(name.split(".")[1]) for name in model.tensors if name.startswith("blk.")}


def test_a_slice_holds_its_own_layers_renumbered_from_0(model: ModelFile, tmp_path: Path) -> None:
    slice_layers(model, LayerRange(10, 14), tmp_path / "slice.gguf")

    part = ModelFile.open(tmp_path / "slice.gguf")

    assert part.layer_count == 5
    assert layer_names(part) == set(range(5))
    ours, theirs = part.tensors["blk.2.ffn_down.weight"], model.tensors["blk.12.ffn_down.weight"]
    assert ours.tensor_type == theirs.tensor_type
    assert np.array_equal(ours.data, theirs.data)


def test_layers_in_between_carry_neither_vocabulary_nor_embedding(model: ModelFile, tmp_path: Path) -> None:
    slice_layers(model, LayerRange(10, 14), tmp_path / "slice.gguf")

    own_bytes = sum(
        t.n_bytes for name, t in model.tensors.items() if name.split(".")[1] in {"10", "11", "12", "13", "14"}
    )

    assert (tmp_path / "slice.gguf").stat().st_size < own_bytes + 200_000


def test_slices_of_the_whole_model_are_the_models_own_file(model: ModelFile, tmp_path: Path) -> None:
    assert cached_slice(model, LayerRange(0, 29), tmp_path) == model.path


def test_a_slice_is_made_once_and_says_when_it_was_last_used(model: ModelFile, tmp_path: Path) -> None:
    path = cached_slice(model, LayerRange(3, 4), tmp_path)
    made = path.stat().st_ino
    os.utime(path, (1.0, 1.0))

    assert cached_slice(model, LayerRange(3, 4), tmp_path) == path
    assert path.stat().st_ino == made
    assert path.stat().st_mtime > 1.0
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_untied_head_leaves_the_output_matrix_out_and_a_tail_the_embedding(tmp_path: Path) -> None:
    model = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf"))
    slice_layers(model, LayerRange(0, 2), tmp_path / "head.gguf")
    slice_layers(model, LayerRange(3, 5), tmp_path / "tail.gguf")

    head, tail = ModelFile.open(tmp_path / "head.gguf"), ModelFile.open(tmp_path / "tail.gguf")

    assert "output.weight" not in head.tensors
    assert "output.weight" not in tail.tensors
    assert np.array_equal(head.tensors["token_embd.weight"].data, model.tensors["token_embd.weight"].data)
    assert np.array_equal(tail.tensors["token_embd.weight"].data, model.tensors["output.weight"].data)


def test_per_layer_arrays_are_sliced_and_others_kept(tmp_path: Path) -> None:
    def extend(writer: GGUFWriter) -> None:
        writer.add_array("llama.attention.example_per_layer", [10, 11, 12, 13, 14, 15])
        writer.add_array("llama.example_of_two", [1, 2])

    model = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf", extend=extend))
    slice_layers(model, LayerRange(2, 4), tmp_path / "slice.gguf")

    fields = GGUFReader(tmp_path / "slice.gguf").fields

    assert fields["llama.attention.example_per_layer"].contents() == [12, 13, 14]
    assert fields["llama.example_of_two"].contents() == [1, 2]
    assert fields["llama.block_count"].contents() == 3


@pytest.mark.parametrize(
    ("layers", "windows"), [("0-2", [True] * 3), ("4-7", [True, False, True, True]), ("5-5", None)], ids=str
)
def test_sliding_windows_are_spelled_out_layer_by_layer(
    tmp_path: Path, layers: str, windows: list[bool] | None
) -> None:
    path = write_tiny_model(
        tmp_path / "tiny.gguf",
        architecture="gemma3",
        layer_count=8,
        extend=lambda writer: writer.add_sliding_window(16),
    )
    slice_layers(ModelFile.open(path), LayerRange.parse(layers), tmp_path / "slice.gguf")

    fields = GGUFReader(tmp_path / "slice.gguf").fields

    pattern = fields.get("gemma3.attention.sliding_window_pattern")
    assert (pattern.contents() if pattern else None) == windows
    assert ("gemma3.attention.sliding_window" in fields) == (windows is not None)


def test_metadata_that_is_not_about_layers_survives_unchanged(model: ModelFile, tmp_path: Path) -> None:
    slice_layers(model, LayerRange(0, 3), tmp_path / "slice.gguf")

    part = ModelFile.open(tmp_path / "slice.gguf")

    changed = {key for key, value in model.metadata.items() if not np.array_equal(value.raw, part.metadata[key].raw)}
    assert changed == {"llama.block_count"}


def test_unverified_architectures_are_refused_with_the_list_of_those_that_are(tmp_path: Path) -> None:
    model = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf", architecture="bloom"))

    with pytest.raises(UnsupportedArchitectureError) as refusal:
        slice_layers(model, LayerRange(0, 1), tmp_path / "slice.gguf")

    assert all(name in str(refusal.value) for name in ("bloom", *VERIFIED_ARCHITECTURES))


def test_a_model_whose_attention_depends_on_its_layer_count_is_refused(tmp_path: Path) -> None:
    model = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf", architecture="gemma3", layer_count=62))

    with pytest.raises(UnsupportedArchitectureError, match="layer count"):
        slice_layers(model, LayerRange(0, 1), tmp_path / "slice.gguf")


def test_layers_the_model_lacks_are_refused_with_those_it_has(model: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(LayersError, match="layers 0-29"):
        slice_layers(model, LayerRange(10, 30), tmp_path / "slice.gguf")


def test_other_files_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\3\4 a zip")

    with pytest.raises(ModelFileError, match="not a GGUF"):
        ModelFile.open(path)
    with pytest.raises(ModelFileError, match="cannot read"):
        ModelFile.open(tmp_path / "absent.gguf")


@pytest.mark.parametrize("kept", [5, 30, 700, 2_000, 20_000, -100])
def test_truncated_files_are_refused_wherever_they_end(tmp_path: Path, kept: int) -> None:
    data = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[:kept])

    with pytest.raises(ModelFileError, match="damaged or cut short"):
        ModelFile.open(tmp_path / "cut.gguf")


def test_garbage_behind_the_magic_is_refused(tmp_path: Path) -> None:
    data = bytearray(write_tiny_model(tmp_path / "tiny.gguf").read_bytes())
    data[8:24] = b"\xff" * 16
    (tmp_path / "bad.gguf").write_bytes(data)

    with pytest.raises(ModelFileError, match="damaged"):
        ModelFile.open(tmp_path / "bad.gguf")


@pytest.mark.parametrize(
    ("extend", "complaint"),
    [
        (lambda writer: writer.add_uint16("split.count", 3), "part of a split model"),
        (lambda writer: writer.add_block_count(9), "lacks layer 6"),
    ],
)
def test_incomplete_models_are_refused(tmp_path: Path, extend: Callable[[GGUFWriter], None], complaint: str) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", extend=extend)

    with pytest.raises(ModelFileError, match=complaint):
        ModelFile.open(path)


def test_the_card_says_what_the_model_is(model: ModelFile, cache_dir: Path) -> None:
    card = model.card(cache_dir)

    assert (card.name, card.architecture, card.layer_count) == ("SmolLM2-135M-Instruct", "llama", 30)
    assert (card.hidden_size, card.context_tokens, len(card.fingerprint)) == (576, 8192, 64)


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct"),
        ("my model.IQ2_XS.gguf", "my-model"),
        ("gemma-3-27b-it-bf16.gguf", "gemma-3-27b-it"),
        ("model.gguf", "Tiny-Random"),
        ("model-f16.gguf", "Tiny-Random"),
    ],
)
def test_a_model_is_called_what_people_call_it(tmp_path: Path, file_name: str, name: str) -> None:
    assert ModelFile.open(write_tiny_model(tmp_path / file_name)).name == name


def test_the_fingerprint_is_of_the_contents_and_not_of_the_file(tmp_path: Path) -> None:
    def fingerprint(name: str, *, tied: bool) -> str:
        return ModelFile.open(write_tiny_model(tmp_path / name, tied=tied)).fingerprint(tmp_path)

    assert fingerprint("a.gguf", tied=True) == fingerprint("b.gguf", tied=True) != fingerprint("c.gguf", tied=False)


def test_a_changed_file_gets_a_new_fingerprint(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    before = ModelFile.open(path).fingerprint(tmp_path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)

    assert ModelFile.open(path).fingerprint(tmp_path) != before


def test_a_hidden_size_is_the_models(tmp_path: Path) -> None:
    assert ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf")).hidden_size == TINY_HIDDEN


def test_a_path_names_a_model_and_anything_else_is_told_the_names(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")

    assert resolve_model(str(path)) == path
    with pytest.raises(ModelFileError, match="smollm2"):
        resolve_model("no-such-model")
