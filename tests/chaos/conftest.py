"""One mesh for everything here: starting five nodes takes longer than most of what is done to them."""

from collections.abc import Iterator
from typing import Any

import pytest

from .chats import WAYS, ask
from .storm import Storm, storm


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    with storm(tmp_path_factory.mktemp("storm")) as running:
        yield running


@pytest.fixture(scope="package")
def undisturbed(mesh: Storm) -> dict[str, Any]:
    """The words of every kind of chat in calm weather."""
    return {way: ask(mesh.url, way, is_stream=True).words for way in WAYS}
