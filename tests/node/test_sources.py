"""Models from far away: only the bytes of the node's own layers, whole after an interruption, and the right ones."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_node.engine import slice_writer
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import cached_slice, plan_slice
from meshnet_node.engine.thread import Engine
from meshnet_node.errors import ModelFileError, SourceError
from meshnet_node.model_server import ModelServer
from meshnet_node.model_source import open_model
from meshnet_node.reader_gate import ReaderGate
from meshnet_node.sources import http
from meshnet_node.sources.header import NeedsMoreError, header_length
from meshnet_node.sources.http import HttpSource
from meshnet_node.sources.mesh import MeshSource
from meshnet_node.sources.remote import open_http, open_remote
from meshnet_node.tracker_reads import TrackerReads
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import TrackerGreeting
from meshnet_protocol.proofs import public_key_text
from meshnet_tracker.ticket_office import TicketOffice
from node.engine_helpers import options
from node.file_server import COMMIT, TOKEN_WANTED, FileServer, serving_files
from node.tiny_models import write_tiny

LAYERS = LayerRange(3, 5)


@pytest.fixture
def local(tmp_path: Path) -> ModelFile:
    return ModelFile.open(write_tiny(tmp_path / "Tiny-Model.Q8_0.gguf", "qwen3", layer_count=12, tied=False))


@pytest.fixture
def server(local: ModelFile) -> Iterator[FileServer]:
    with serving_files({"/Tiny-Model.Q8_0.gguf": local.path.read_bytes()}) as server:
        yield server


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Back-off without the waiting: what would have been waited for."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_writer, "BLOCK_BYTES_MAX", 8192)


def open_url(server: FileServer, cache_dir: Path, waits: list[float] | None = None) -> ModelFile:
    waits = [] if waits is None else waits
    source = HttpSource(f"{server.url}/Tiny-Model.Q8_0.gguf", wait=waits.append)
    return open_http(source, "Tiny-Model.Q8_0.gguf", cache_dir, lambda _: lambda done, total: None)


def test_layers_fetched_over_http_are_the_layers_cut_from_the_file(
    server: FileServer, local: ModelFile, tmp_path: Path
) -> None:
    remote = open_model(f"{server.url}/Tiny-Model.Q8_0.gguf", cache_dir=tmp_path)

    for layers in (LayerRange(0, 2), LAYERS, LayerRange(6, 11)):
        here, there = cached_slice(local, layers, tmp_path / "a"), cached_slice(remote, layers, tmp_path / "b")
        assert here.read_bytes() == there.read_bytes()
    assert remote.name == local.name == "Tiny-Model"


def test_only_the_bytes_of_the_own_layers_are_fetched(server: FileServer, local: ModelFile, tmp_path: Path) -> None:
    remote = open_url(server, tmp_path)
    before = server.sent_bytes

    cached_slice(remote, LAYERS, tmp_path)

    own_bytes = plan_slice(local, LAYERS).copied_bytes
    assert own_bytes <= server.sent_bytes - before < own_bytes + 1024
    assert own_bytes < local.path.stat().st_size / 3


def test_all_layers_of_a_remote_model_can_be_had_too(server: FileServer, local: ModelFile, tmp_path: Path) -> None:
    remote = open_url(server, tmp_path)

    path = cached_slice(remote, LayerRange(0, 11), tmp_path)

    assert set(ModelFile.open(path).tensors) == set(local.tensors)


def test_an_engine_runs_a_model_it_never_had_whole(server: FileServer, tmp_path: Path) -> None:
    engine = Engine.load(open_url(server, tmp_path), LayerRange(0, 4), options(tmp_path))

    tokens = engine.vocabulary.size
    engine.close()

    assert tokens == 160


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_download_goes_on_where_it_stopped(server: FileServer, local: ModelFile, tmp_path: Path) -> None:
    waits: list[float] = []
    remote = open_url(server, tmp_path / "b", waits)
    before, own_bytes = server.sent_bytes, plan_slice(local, LAYERS).copied_bytes
    server.bytes_left = before + own_bytes // 2
    with pytest.raises(SourceError, match="what has arrived is kept"):
        cached_slice(remote, LAYERS, tmp_path / "b")
    server.bytes_left = None

    path = cached_slice(open_url(server, tmp_path / "b"), LAYERS, tmp_path / "b")

    assert path.read_bytes() == cached_slice(local, LAYERS, tmp_path / "a").read_bytes()
    assert server.sent_bytes - before < own_bytes + 2 * 8192
    assert [file.name for file in path.parent.iterdir() if file.suffix != ".lock"] == [path.name]
    assert len(waits) == http.ATTEMPTS_MAX - 1


def test_short_outages_are_waited_out_with_growing_pauses(server: FileServer, tmp_path: Path) -> None:
    waits: list[float] = []
    server.outages = 4

    open_url(server, tmp_path, waits)

    assert len(waits) == 4
    assert waits[-1] > waits[0]


def test_a_server_without_ranges_is_asked_for_the_whole_file_once(
    server: FileServer, local: ModelFile, tmp_path: Path
) -> None:
    server.takes_ranges = False

    first, again = open_url(server, tmp_path), open_url(server, tmp_path)

    assert first.is_local
    assert first.path == again.path
    assert first.fingerprint(tmp_path) == local.fingerprint(tmp_path)


def test_a_file_that_changes_while_it_is_fetched_is_not_mixed(server: FileServer, tmp_path: Path) -> None:
    remote = open_url(server, tmp_path)
    server.etag = '"v2"'

    with pytest.raises(SourceError, match="has changed"):
        cached_slice(remote, LAYERS, tmp_path)


def test_another_version_of_a_file_is_another_model(server: FileServer, tmp_path: Path) -> None:
    first = open_url(server, tmp_path).card(tmp_path)
    server.etag = '"v2"'

    second = open_url(server, tmp_path).card(tmp_path)

    assert first.model_key != second.model_key
    assert first.name == second.name


def test_a_tensor_that_arrives_damaged_is_refused_and_fetched_again(
    server: FileServer, local: ModelFile, tmp_path: Path
) -> None:
    manifest, good = local.manifest(), server.files["/Tiny-Model.Q8_0.gguf"]

    def open_checked() -> ModelFile:
        source = HttpSource(f"{server.url}/Tiny-Model.Q8_0.gguf")
        return open_remote(source, "t.gguf", len(good), "f" * 64, tmp_path, lambda _: lambda d, t: None, manifest)

    damaged = bytearray(good)
    damaged[int(local.tensors["blk.4.ffn_up.weight"].data_offset) + 7] ^= 1
    server.files["/Tiny-Model.Q8_0.gguf"] = bytes(damaged)
    with pytest.raises(SourceError, match=r"blk\.4\.ffn_up\.weight arrived damaged"):
        cached_slice(open_checked(), LAYERS, tmp_path)
    server.files["/Tiny-Model.Q8_0.gguf"] = good

    path = cached_slice(open_checked(), LAYERS, tmp_path)

    assert path.read_bytes() == cached_slice(local, LAYERS, tmp_path / "a").read_bytes()


def test_a_full_disk_is_said_before_anything_is_fetched(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = open_url(server, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))

    with pytest.raises(ModelFileError, match="no room on the disk"):
        cached_slice(remote, LAYERS, tmp_path)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("{url}/absent.gguf", "404: there is no such file"),
        ("http://127.0.0.1:1/some.gguf", "cannot be fetched"),
        ("{url}/page.html", "not a GGUF file"),
        ("{url}/short.gguf", "cut short or damaged"),
    ],
)
def test_addresses_that_lead_to_no_model_are_told_apart(
    server: FileServer, local: ModelFile, tmp_path: Path, address: str, complaint: str
) -> None:
    server.files["/page.html"] = b"<html>sign in first</html>"
    server.files["/short.gguf"] = local.path.read_bytes()[:3000]

    with pytest.raises(ModelFileError, match=complaint):
        open_model(address.format(url=server.url), cache_dir=tmp_path)


def test_the_header_ends_where_the_gguf_package_says(local: ModelFile) -> None:
    data = local.path.read_bytes()
    first_tensor = min(int(tensor.data_offset) for tensor in local.tensors.values())

    length = header_length(data)

    assert first_tensor - 32 < length <= first_tensor
    for cut in (3, 10, 100, length - 1):
        with pytest.raises(NeedsMoreError):
            header_length(data[:cut])


def test_a_hub_file_is_pinned_to_its_commit_and_fetched_in_ranges(
    server: FileServer, local: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    remote = open_model("someone/tiny-gguf:Tiny-Model.Q8_0.gguf", cache_dir=tmp_path)
    before = server.sent_bytes

    path = cached_slice(remote, LAYERS, tmp_path / "b")

    assert path.read_bytes() == cached_slice(local, LAYERS, tmp_path / "a").read_bytes()
    assert server.sent_bytes - before < local.path.stat().st_size / 3
    assert any(COMMIT in seen for seen in server.paths)


def test_a_gated_hub_file_says_what_to_do_and_opens_with_a_token(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server.wants_token = True
    with pytest.raises(SourceError, match="set HF_TOKEN"):
        open_model("someone/tiny-gguf:Tiny-Model.Q8_0.gguf", cache_dir=tmp_path)

    monkeypatch.setenv("HF_TOKEN", TOKEN_WANTED)

    assert open_model("someone/tiny-gguf:Tiny-Model.Q8_0.gguf", cache_dir=tmp_path).layer_count == 12


def test_a_hub_file_that_is_not_there_is_a_clear_error(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)

    with pytest.raises(SourceError, match="check repository and file name"):
        open_model("someone/tiny-gguf:absent.gguf", cache_dir=tmp_path)


class Mesh:
    """A stand-in tracker and real node file servers on real ports."""

    def __init__(self) -> None:
        self._servers: list[TestServer] = []
        self._nodes: list[dict[str, str]] = []
        self.reading_pass = ""
        self.passes_given = 0

    async def start_tracker(self) -> str:
        async def nodes(_: web.Request) -> web.Response:
            return web.json_response({"nodes": self._nodes})

        async def give_pass(_: web.Request) -> web.Response:
            self.passes_given += 1
            return web.json_response({"text": self.reading_pass}, status=200 if self.reading_pass else 403)

        app = web.Application()
        app.router.add_get("/v1/nodes", nodes)
        app.router.add_get("/v1/nodes/pass", give_pass)
        return await self._start(app)

    async def add(self, engine: Engine, cache_dir: Path, gate: ReaderGate | None = None) -> None:
        app = web.Application()
        ModelServer(engine, cache_dir, gate).add_to(app)
        self._nodes.append({"model": engine.card.model_key, "url": await self._start(app)})

    async def _start(self, app: web.Application) -> str:
        server = TestServer(app)
        await server.start_server()
        self._servers.append(server)
        return str(server.make_url("")).rstrip("/")

    async def close(self) -> None:
        for server in self._servers:
            await server.close()


async def test_a_node_without_the_file_gets_its_layers_from_the_mesh(local: ModelFile, tmp_path: Path) -> None:
    mesh = Mesh()
    tracker = TrackerReads(await mesh.start_tracker())
    first = Engine.load(local, LayerRange(0, 3), options(tmp_path / "first"))
    await mesh.add(first, tmp_path / "first")

    remote = await asyncio.to_thread(open_model, "mesh:Tiny-Model", cache_dir=tmp_path / "second", tracker=tracker)
    path = await asyncio.to_thread(cached_slice, remote, LAYERS, tmp_path / "second")
    await mesh.close()
    first.close()

    assert path.read_bytes() == cached_slice(local, LAYERS, tmp_path / "a").read_bytes()
    assert remote.card(tmp_path / "second") == local.card(tmp_path / "first")
    assert remote.origin is not None
    assert remote.origin.manifest is not None


async def test_a_guarded_file_is_read_with_one_pass_of_the_tracker_and_not_without(
    local: ModelFile, tmp_path: Path
) -> None:
    mesh, key, trust = Mesh(), Ed25519PrivateKey.generate(), TrackerTrust()
    tracker = TrackerReads(await mesh.start_tracker())
    trust.greet(TrackerGreeting(tracker_key=public_key_text(key), boot="1", time_s=1_800_000_000.0))
    engine = Engine.load(local, LayerRange(0, 11), options(tmp_path / "first"))
    await mesh.add(engine, tmp_path / "first", ReaderGate(trust, is_open=False))

    with pytest.raises(SourceError, match="to members only"):
        await asyncio.to_thread(open_model, "mesh:Tiny-Model", cache_dir=tmp_path / "b", tracker=tracker)
    mesh.reading_pass = TicketOffice(key).issue_pass(now=1_800_000_000.0)
    given_before = mesh.passes_given
    remote = await asyncio.to_thread(open_model, "mesh:Tiny-Model", cache_dir=tmp_path / "b", tracker=tracker)
    path = await asyncio.to_thread(cached_slice, remote, LAYERS, tmp_path / "b")
    await mesh.close()
    engine.close()

    assert path.read_bytes() == cached_slice(local, LAYERS, tmp_path / "a").read_bytes()
    assert mesh.passes_given == given_before + 1


async def test_nodes_that_hold_parts_serve_together_what_none_has_alone(
    server: FileServer, local: ModelFile, tmp_path: Path
) -> None:
    mesh = Mesh()
    tracker = TrackerReads(await mesh.start_tracker())
    engines = []
    for layers in (LayerRange(0, 5), LayerRange(6, 11)):
        cache_dir = tmp_path / str(layers)
        remote = await asyncio.to_thread(open_url, server, cache_dir)
        engines.append(await asyncio.to_thread(Engine.load, remote, layers, options(cache_dir)))
        await mesh.add(engines[-1], cache_dir)
    server.files.clear()  # the world outside is gone

    joined = await asyncio.to_thread(open_model, "mesh:Tiny-Model", cache_dir=tmp_path / "c", tracker=tracker)
    path = await asyncio.to_thread(cached_slice, joined, LayerRange(4, 8), tmp_path / "c")
    await mesh.close()
    for engine in engines:
        engine.close()

    assert path.read_bytes() == cached_slice(local, LayerRange(4, 8), tmp_path / "a").read_bytes()
    assert joined.card(tmp_path).model_key == engines[0].card.model_key


async def test_a_model_the_mesh_lacks_is_a_clear_error(tmp_path: Path) -> None:
    mesh = Mesh()
    tracker = TrackerReads(await mesh.start_tracker())

    with pytest.raises(SourceError, match="neither a node of the mesh"):
        await asyncio.to_thread(open_model, "mesh:Absent", cache_dir=tmp_path, tracker=tracker)
    await mesh.close()


def test_a_mesh_where_nobody_has_the_bytes_says_so() -> None:
    with pytest.raises(SourceError, match="no node of the mesh has bytes 0 to 5"):
        MeshSource([]).read(0, 5)
