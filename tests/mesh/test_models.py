"""Nodes that are told neither which layers to hold nor where the file is, in a real mesh."""

from pathlib import Path

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.tracker_api import get_json
from meshnet_node.model_source import resolve_model

from .conftest import client_of, wait_until

MODEL = "SmolLM2-135M-Instruct"


def shards(mesh: Mesh) -> dict[str, str]:
    """Of the nodes that are ready, by instance."""
    nodes = get_json(mesh.url, "/v1/nodes")["nodes"]
    return {node["node_id"].split(".")[0]: node["shard"] for node in nodes if node["state"] == "ready"}


def test_a_node_gets_its_layers_from_the_tracker_and_its_file_from_another(bare_mesh: Mesh, tmp_path: Path) -> None:
    mesh = bare_mesh
    mesh.start_node("first", "0-16", layer_delay_ms=0)
    wait_until(lambda: shards(mesh) == {"first": "0-16"}, timeout_s=60)

    own = ["--model", f"mesh:{MODEL}", "--cache-dir", str(tmp_path / "second")]
    mesh.start_node("second", "auto", layer_delay_ms=0, options=own)
    wait_until(lambda: shards(mesh) == {"first": "0-16", "second": "17-29"}, timeout_s=60)
    answer = client_of(mesh).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        temperature=0,
        max_tokens=16,
    )

    assert "Paris" in (answer.choices[0].message.content or "")
    assert len({node["model"] for node in get_json(mesh.url, "/v1/nodes")["nodes"]}) == 1


def test_the_trackers_own_store_is_all_the_first_nodes_need(tmp_path: Path) -> None:
    with Mesh(tmp_path, free_port(0), f"mesh:{MODEL}") as mesh:
        mesh.start_tracker(["--store", "smollm2", "--cache-dir", str(tmp_path / "tracker")])
        for name, layers in (("first", "0-16"), ("second", "17-29")):
            mesh.start_node(name, layers, layer_delay_ms=0, options=["--cache-dir", str(tmp_path / name)])
        wait_until(lambda: shards(mesh) == {"first": "0-16", "second": "17-29"}, timeout_s=60)
        answer = client_of(mesh).chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
            temperature=0,
            max_tokens=16,
        )

    assert "Paris" in (answer.choices[0].message.content or "")
    fetched = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("first/**/*.gguf"))
    assert fetched < 0.75 * resolve_model("smollm2").stat().st_size
