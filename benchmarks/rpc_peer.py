"""The peer of ``rpc_split.py``: llama.cpp's own way to share a model, its server with some layers on an RPC worker.

Both programs are built once from the sources that llama-cpp-python's pinned release carries, so that both sides
compute with the same kernels. That takes some ten minutes and is kept in the user's cache folder.
"""

import os
import platform
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from urllib.request import urlopen

from meshnet_cli.demo.processes import free_port

START_TIMEOUT_S = 60.0
PACKAGE = "llama-cpp-python"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_RPC": "ON",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
}
PROGRAMS = ("llama-server", "ggml-rpc-server")


def build_programs() -> Path:
    """The folder with both programs; makes them if they are not there. Raises CalledProcessError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "meshnet-benchmarks" / f"llama.cpp-{version(PACKAGE)}-{platform.machine()}"
    programs = folder / "bin"
    if all((programs / name).is_file() for name in PROGRAMS):
        return programs
    with tempfile.TemporaryDirectory() as unpacked:
        sources = _unpack_sources(Path(unpacked))
        cmake = ["uvx", "--with", "ninja", "cmake"]
        defines = [f"-D{name}={value}" for name, value in OPTIONS.items()]
        subprocess.run([*cmake, "-S", str(sources), "-B", str(folder), *defines], check=True)
        subprocess.run(
            [*cmake, "--build", str(folder), "--parallel", str(os.cpu_count()), "--target", *PROGRAMS], check=True
        )
    return programs


@contextmanager
def rpc_split_server(model: Path, *, worker_layers: int, slots: int, context_tokens: int) -> Iterator[str]:
    """llama-server with one thread and the model's last layers on a worker with one thread; yields its base URL."""
    programs = build_programs()
    worker_port, port = free_port(0), free_port(0)
    worker = [str(programs / "ggml-rpc-server"), "--host", "127.0.0.1", "--port", str(worker_port), "--threads", "1"]
    server = [str(programs / "llama-server"), "--model", str(model), "--port", str(port), "--threads", "1"]
    server += ["--parallel", str(slots), "--ctx-size", str(slots * context_tokens), "--no-warmup"]
    # The output matrix counts as one layer more.
    server += ["--rpc", f"127.0.0.1:{worker_port}", "--gpu-layers", str(worker_layers + 1)]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(worker, stdout=nowhere, stderr=nowhere) as at_work:
        time.sleep(1.0)  # it says nothing that could be waited for
        with subprocess.Popen(server, stdout=nowhere, stderr=nowhere) as serving:
            try:
                _wait_healthy(f"http://127.0.0.1:{port}", serving)
                yield f"http://127.0.0.1:{port}"
            finally:
                serving.terminate()
                at_work.terminate()


def _wait_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError("llama-server with an RPC worker did not start")


def _unpack_sources(folder: Path) -> Path:
    """llama.cpp as the pinned release carries it."""
    wanted = f"{PACKAGE}=={version(PACKAGE)}"
    pip = ["uv", "run", "--no-project", "--with", "pip", "python", "-m", "pip"]
    subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (sources,) = folder.glob("*/vendor/llama.cpp")
    return sources
