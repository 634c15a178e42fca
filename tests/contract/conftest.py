"""One real mesh for all of the contract: routes of one, two and three hops over the same model."""

from collections.abc import Iterator

import pytest

from meshnet_cli.demo.processes import Mesh, free_port

from .endpoint import Endpoint

ALIAS, MODEL = "gpt-4o-mini", "SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """``late`` may be entered in its middle, so a route of two hops and one of three differ in where they cut."""
    patch = pytest.MonkeyPatch()
    patch.setenv("MESHNET_MODEL_ALIASES", f"{ALIAS}={MODEL}")
    with Mesh(tmp_path_factory.mktemp("contract"), free_port(0), "smollm2") as mesh:
        mesh.start_tracker()
        patch.undo()
        for name, layers in (("first", "0-9"), ("middle", "10-19"), ("last", "20-29"), ("whole", "0-29")):
            mesh.start_node(name, layers, layer_delay_ms=0)
        for name, entry_layers in (("first", [0]), ("middle", [10]), ("last", [20]), ("whole", [0, 10, 20])):
            mesh.wait_node(name, entry_layers=entry_layers)
        yield Endpoint(mesh.url)
