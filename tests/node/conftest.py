"""The real model, opened once, and one cache for all the slices that tests make of it."""

from pathlib import Path

import pytest

from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.model_source import resolve_model


@pytest.fixture(scope="session")
def model_path() -> Path:
    return resolve_model("smollm2")


@pytest.fixture(scope="session")
def model(model_path: Path) -> ModelFile:
    return ModelFile.open(model_path)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine-cache")
