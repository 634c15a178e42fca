"""What layers need in memory is known before they are loaded, and is what llama.cpp then takes."""

import logging
import re
from pathlib import Path

import pytest

from meshnet_node.engine.api import SLICE_FORMAT
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.memory import available_memory, check_memory, memory_need
from meshnet_node.engine.shard import load_generation
from meshnet_node.errors import MemoryShortageError
from meshnet_node.model_catalog import kept_files, needs_at, pull
from meshnet_protocol.layers import LayerRange
from node.engine_helpers import options
from node.tiny_models import write_tiny

MIB = 1024 * 1024
BUFFERS_TOLERANCE = 0.35


def taken(caplog: pytest.LogCaptureFixture, what: str) -> float:
    """Bytes llama.cpp says it allocated for buffers of this kind."""
    return MIB * sum(float(size) for size in re.findall(rf"{what} buffer size = +([\d.]+) MiB", caplog.text))


@pytest.mark.parametrize("layers", ["0-29", "0-9", "10-19", "20-29"])
def test_the_estimate_is_what_llama_cpp_allocates(
    model: ModelFile, cache_dir: Path, caplog: pytest.LogCaptureFixture, layers: str
) -> None:
    settings, piece = options(cache_dir, context_tokens=1024, chunk_tokens=128), LayerRange.parse(layers)
    need = memory_need(model, [piece], settings)

    with caplog.at_level(logging.DEBUG, logger="meshnet.llama"):
        load_generation(model, piece, [piece], settings, number=0).close()

    assert need.cache == pytest.approx(taken(caplog, "KV"), rel=0.01)
    assert need.weights == pytest.approx(taken(caplog, "CPU_Mapped model"), rel=0.02)
    assert need.buffers == pytest.approx(taken(caplog, "CPU compute") + taken(caplog, "output"), rel=BUFFERS_TOLERANCE)


def test_recurrent_states_are_counted_by_slot_and_not_by_context(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hybrid = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", "qwen35moe"))
    piece = LayerRange(0, 7)
    need = memory_need(hybrid, [piece], options(tmp_path))

    with caplog.at_level(logging.DEBUG, logger="meshnet.llama"):
        load_generation(hybrid, piece, [piece], options(tmp_path), number=0).close()

    assert need.cache == pytest.approx(taken(caplog, "KV") + taken(caplog, "RS"), rel=0.05)


def test_layers_that_do_not_fit_are_refused_with_numbers_and_advice(model: ModelFile, cache_dir: Path) -> None:
    shard, settings = LayerRange(0, 29), options(cache_dir, context_tokens=4096)
    need = memory_need(model, [shard], settings)

    check_memory(model, shard, settings, available=need.total)
    check_memory(model, shard, settings, available=None)
    with pytest.raises(MemoryShortageError, match=r"need \d+ MB .*weights.* has 99 MB to spare; hold fewer --layers"):
        check_memory(model, shard, settings, available=99_000_000)


def test_a_containers_limit_counts_if_it_is_the_smaller(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:   4000 kB\n")
    assert available_memory(tmp_path) == 4000 * 1024

    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("3000000\n")
    (group / "memory.current").write_text("1000000\n")
    assert available_memory(tmp_path) == 2_000_000

    (group / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) == 4000 * 1024


def test_both_sides_of_a_cut_are_shown_and_impossible_cuts_explained(tmp_path: Path) -> None:
    hybrid = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", "qwen35moe"))

    possible, impossible = needs_at(hybrid, [5, 7], options(tmp_path))

    assert [str(layers) for layers, _ in possible.sides] == ["0-4", "5-7"]
    assert not impossible.sides
    assert "at least one layer" in impossible.problem


def test_pulled_layers_are_listed(model: ModelFile, tmp_path: Path) -> None:
    path = pull(model, LayerRange(3, 4), tmp_path)

    older = path.with_name(path.name.replace(f"-v{SLICE_FORMAT}-", f"-v{SLICE_FORMAT - 1}-"))
    older.touch()
    found = {file.path: (file.name, file.kind, file.layers) for file in kept_files(tmp_path)}
    model_key = model.card(tmp_path).model_key

    assert found == {
        model.path: ("smollm2", "package", "all"),
        path: (model_key, "layers", "3-4"),
        older: (model_key, "outdated", "3-4"),
    }
