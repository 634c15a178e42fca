"""``mesh:MODEL``: the model as other nodes have it, so that a mesh without internet can grow.

The tracker says who serves the model. Each of those nodes offers the parts it holds as ranges of the whole file
(``model_server.py``); together they usually hold all of it. The tracker may have the file in its own store, and
offers it the same way. Who has the whole file offers its manifest too, and every tensor that arrives is checked
against it.
"""

import re
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec

from meshnet_node.engine.gguf_file import Manifest, ModelFile, manifest_fingerprint
from meshnet_node.errors import SourceError
from meshnet_node.sources.http import HttpSource
from meshnet_node.sources.remote import ReportProgress, open_remote
from meshnet_node.tracker_reads import TrackerReads
from meshnet_protocol.messages import SharedFile

REQUEST_TIMEOUT_S = 10.0
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class MeshSource:
    """Several nodes' parts of one file."""

    def __init__(self, sources: list[HttpSource]) -> None:
        self._sources = sources

    def read(self, start: int, end: int) -> bytes:
        data = bytearray()
        while start + len(data) < end:
            data += self._read_some(start + len(data), end)
        return bytes(data)

    def _read_some(self, start: int, end: int) -> bytes:
        """From the first node that has what stands at ``start``."""
        reasons = []
        for source in list(self._sources):
            try:
                return source.read_some(start, end)
            except SourceError as error:
                reasons.append(str(error))
        raise SourceError(f"no node of the mesh has bytes {start} to {end} of the model: {'; '.join(reasons)}")


def open_mesh(tracker: TrackerReads, model: str, cache_dir: Path, progress: ReportProgress) -> ModelFile:
    """``model``: public name or model key. Raises SourceError."""
    places = [*_nodes_with(tracker, model), *_stored_at(tracker, model)]
    keys = sorted({key for key, _ in places})
    if len(keys) > 1:
        raise SourceError(f"the mesh has several models called {model!r}; choose one: mesh:{', mesh:'.join(keys)}")
    if not keys:
        raise SourceError(
            f"neither a node of the mesh nor the store of the tracker at {tracker.url} has {model!r}; "
            "start the tracker with --store, or a node with the file"
        )
    offers = [(address, offer) for _, address in places if (offer := _offer(tracker, address)) is not None]
    if not offers:
        raise SourceError(f"no node of {keys[0]} can be reached for its file; try again when one is up")
    shared = offers[0][1]
    with_manifest = [address for address, offer in offers if offer.has_manifest]
    manifest = next((found for address in with_manifest if (found := _manifest(tracker, address))), None)
    if manifest is not None and manifest_fingerprint(manifest) != shared.fingerprint:
        raise SourceError(f"the manifest of {keys[0]} is not the one its fingerprint names; do not trust that node")
    same = [address for address, offer in offers if offer.fingerprint == shared.fingerprint]
    source = MeshSource([HttpSource(f"{address}/file", tls=tracker.tls, auth=tracker.signing()) for address in same])
    return open_remote(
        source, shared.file_name, shared.byte_count, shared.fingerprint, cache_dir, progress, manifest=manifest
    )


def _nodes_with(tracker: TrackerReads, model: str) -> list[tuple[str, str]]:
    """Model key, and where its file is offered, of every node that serves it."""
    try:
        response = tracker.get("/v1/nodes")
        response.raise_for_status()
        nodes = response.json()["nodes"]
        return [
            (n["model"], f"{n['url'].rstrip('/')}/v1/models/{quote(n['model'], safe='')}")
            for n in nodes
            if model in (n["model"], n["model"].rpartition("@")[0])
        ]
    except (httpx.HTTPError, msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"the tracker at {tracker.url} cannot say who has {model!r} ({error}); is it up?") from error


def _stored_at(tracker: TrackerReads, model: str) -> list[tuple[str, str]]:
    """The same of the tracker's own store; a tracker without one has none."""
    try:
        response = tracker.get("/v1/store")
        stored = response.json()["models"] if response.status_code == 200 else []
        keys = [entry["model_key"] for entry in stored if model in (entry["name"], entry["model_key"])]
        return [(key, f"{tracker.url.rstrip('/')}/v1/store/{quote(key, safe='')}") for key in keys]
    except (httpx.HTTPError, msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
        reason = f"the tracker at {tracker.url} cannot say what is in its store ({error}); is it up?"
        raise SourceError(reason) from error


def _offer(tracker: TrackerReads, address: str) -> SharedFile | None:
    try:
        response = tracker.fetch(address)
        response.raise_for_status()
        offer = msgspec.json.decode(response.content, type=SharedFile)
        return offer if _FINGERPRINT.fullmatch(offer.fingerprint) and offer.byte_count > 0 else None
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None


def _manifest(tracker: TrackerReads, address: str) -> Manifest | None:
    try:
        response = tracker.fetch(f"{address}/manifest")
        response.raise_for_status()
        return msgspec.json.decode(response.content, type=Manifest)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None
