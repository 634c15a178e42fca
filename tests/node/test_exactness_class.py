"""A node's exactness is tested at start; who insists on it is refused where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshnet_node.engine import exactness
from meshnet_node.engine.thread import Engine
from meshnet_node.errors import NotExactError, SettingsError
from meshnet_node.settings import NodeSettings
from meshnet_protocol.layers import LayerRange
from node.engine_helpers import options

SHARDS = [LayerRange(0, 2), LayerRange(14, 16), LayerRange(27, 29), LayerRange(0, 29)]


@pytest.mark.parametrize("shard", SHARDS, ids=str)
def test_weights_that_are_exact_on_every_build_pass_the_test(
    model_path: Path, cache_dir: Path, shard: LayerRange
) -> None:
    engine = Engine.load(model_path, shard, replace(options(cache_dir), exact="on"))
    engine.close()

    assert engine.exactness.is_exact
    assert "KV cache Q8_0 keys, F16 values" in engine.exactness.description


def test_nodes_of_one_build_are_of_one_class_whatever_they_hold(model_path: Path, cache_dir: Path) -> None:
    classes = set()
    for shard, slots in ((SHARDS[0], 1), (SHARDS[2], 4)):
        engine = Engine.load(model_path, shard, options(cache_dir, slots=slots))
        classes.add(engine.exactness.class_id)
        engine.close()

    assert len(classes) == 1


def test_a_build_setting_that_changes_kernels_makes_another_class(
    model_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(model_path, SHARDS[0], options(cache_dir))
    monkeypatch.setenv("GGML_CPU_TILED_MM_FORCE", "1")
    other = Engine.load(model_path, SHARDS[0], options(cache_dir))
    engine.close()
    other.close()

    assert engine.exactness.class_id != other.exactness.class_id


def test_a_difference_of_one_bit_is_found_and_refused(
    model_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As weights would whose kernel depends on the number of rows."""
    real_run = exactness._run

    def run_inexactly(segments: object, pieces: dict[int, tuple[int, int]]) -> object:
        results = real_run(segments, pieces)  # type: ignore[arg-type]
        if pieces[0][1] > 8:
            results[0].view("i4").flat[-1] ^= 1
        return results

    monkeypatch.setattr(exactness, "_run", run_inexactly)
    told = Engine.load(model_path, SHARDS[0], options(cache_dir))
    told.close()

    assert told.exactness.is_exact is False
    with pytest.raises(NotExactError, match="--exact auto"):
        Engine.load(model_path, SHARDS[0], replace(options(cache_dir), exact="on"))


def test_whoever_turns_it_off_is_told_nothing(model_path: Path, cache_dir: Path) -> None:
    engine = Engine.load(model_path, SHARDS[0], replace(options(cache_dir), exact="off"))
    engine.close()

    assert engine.exactness.is_exact is None


def test_an_unknown_mode_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="auto, on, off"):
        NodeSettings(
            model="smollm2",
            layers=None,
            tracker="http://127.0.0.1:8090",
            wallet=tmp_path / "wallet.pem",
            cache_dir=tmp_path,
            exact="maybe",
        )


def test_who_gives_exactness_up_gets_the_cache_with_the_quickest_prompts_in_a_class_of_its_own(
    model_path: Path, cache_dir: Path
) -> None:
    exact = Engine.load(model_path, SHARDS[0], options(cache_dir))
    quick = Engine.load(model_path, SHARDS[0], replace(options(cache_dir), exact="off"))
    exact.close()
    quick.close()

    assert "KV cache F16" in quick.exactness.description
    assert quick.exactness.is_exact is None
    assert quick.exactness.class_id != exact.exactness.class_id
