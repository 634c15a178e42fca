"""A GGUF model file, read once: what the model is, where its tensors lie, and its fingerprint.

Reading is memory-mapped; no tensor is copied or dequantized. The ``gguf`` package does the parsing. Its
reader makes two numpy arrays for every token of the vocabulary, which costs two seconds for 49,152 tokens,
so arrays are kept here as the bytes they are: nothing in a node needs the vocabulary from here.

The fingerprint is the hash of a manifest with one hash per metadata value and one per tensor, so that a
holder of some layers can later check its own part against the manifest of the whole.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, ReaderTensor

from meshnet_node.errors import LayersError, ModelFileError
from meshnet_node.sources.source import TensorSource
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import ModelCard

LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")

_GGUF_MAGIC = b"GGUF"
_QUANTIZATION_SUFFIX = re.compile(r"[.\-_](?:I?Q\d\w*|F16|F32|BF16|FP16|MXFP4\w*|TQ\d\w*)$", re.IGNORECASE)
_NAMELESS_STEMS = re.compile(r"(?:ggml[-_.])?(?:model|weights|ggml|[0-9a-f]{32,})", re.IGNORECASE)
# What a damaged file makes the reader stumble over: there is no single exception for it.
_READER_ERRORS = (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError, struct.error)


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """One metadata value as it stands in the file."""

    value_type: GGUFValueType
    item_type: GGUFValueType | None
    """Of an array; None for anything else."""
    raw: npt.NDArray[np.uint8]
    """The value's bytes, without its type; an array's start with item type and length."""

    @property
    def item_count(self) -> int:
        """How many items an array has; 1 for anything else."""
        return 1 if self.item_type is None else int(struct.unpack_from("<Q", self.raw.data, 4)[0])

    def items(self) -> npt.NDArray[Any]:
        """An array's scalars. Arrays of strings are not looked into."""
        assert self.item_type is not None
        return self.raw[_ARRAY_PREFIX_BYTES:].view(GGUFReader.gguf_scalar_to_np[self.item_type])


_ARRAY_PREFIX_BYTES = 12


class _Reader(GGUFReader):
    """``GGUFReader`` that steps over arrays instead of taking them apart."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type, count = struct.unpack_from("<IQ", self.data.data, orig_offs)
        end = self._end_of_items(GGUFValueType(item_type), count, orig_offs + _ARRAY_PREFIX_BYTES)
        if end > len(self.data):
            raise ValueError("an array runs past the end of the file")
        return end - orig_offs, [self.data[orig_offs:end]], [0], [GGUFValueType.ARRAY, GGUFValueType(item_type)]

    def _end_of_items(self, item_type: GGUFValueType, count: int, start: int) -> int:
        if item_type is not GGUFValueType.STRING:
            return start + count * np.dtype(self.gguf_scalar_to_np[item_type]).itemsize
        data, read_length, end = self.data.data, struct.Struct("<Q").unpack_from, start
        for _ in range(count):
            end += 8 + read_length(data, end)[0]
        return end


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF file that holds a whole model."""

    path: Path
    architecture: str
    layer_count: int
    hidden_size: int
    context_tokens: int
    """What the model was trained for."""
    alignment: int
    metadata: Mapping[str, MetadataValue] = field(repr=False)
    tensors: Mapping[str, ReaderTensor] = field(repr=False)
    """As the file lists them. Of a remote model only the table is here: weights are read from ``origin``."""
    general_name: str
    origin: "ModelOrigin | None" = field(default=None, repr=False)
    """Where the weights lie, if not in the file at ``path``."""

    @classmethod
    def open(cls, path: Path, *, origin: "ModelOrigin | None" = None) -> "ModelFile":
        """Read metadata and tensor table. Raises ModelFileError if this is no whole, undamaged GGUF model."""
        reader = _read(path)
        facts = _Facts(path, reader)
        if (facts.integer("split.count") or 1) > 1:
            raise ModelFileError(f"{path} is one part of a split model; join it with: llama-gguf-split --merge")
        architecture = facts.text("general.architecture")
        if not architecture:
            raise ModelFileError(f"{path} names no architecture; it is no model that llama.cpp can run")
        model = cls(
            path=path,
            architecture=architecture,
            # Layers that predict further tokens (MTP) stand behind the others and take no part in a pass.
            layer_count=facts.required(f"{architecture}.block_count")
            - (facts.integer(f"{architecture}.nextn_predict_layers") or 0),
            hidden_size=facts.required(f"{architecture}.embedding_length"),
            context_tokens=facts.required(f"{architecture}.context_length"),
            alignment=int(reader.alignment),
            metadata=facts.values(),
            tensors={tensor.name: tensor for tensor in reader.tensors},
            general_name=facts.text("general.name"),
            origin=origin,
        )
        model._check_layers()
        return model

    def _check_layers(self) -> None:
        present = {int(match[1]) for name in self.tensors if (match := LAYER_TENSOR.fullmatch(name))}
        missing = sorted(set(range(self.layer_count)) - present)
        if missing or "token_embd.weight" not in self.tensors:
            what = f"layer {missing[0]}" if missing else "the token embedding"
            raise ModelFileError(f"{self.path} lacks {what}; give the file of the whole model")

    def check_range(self, layers: LayerRange) -> None:
        """Raises LayersError unless the model has these layers."""
        if layers.last >= self.layer_count:
            raise LayersError(layers, layer_count=self.layer_count)

    def is_whole(self, layers: LayerRange) -> bool:
        return layers.layer_count == self.layer_count

    def integer(self, key: str) -> int | None:
        """An integer of the architecture's own metadata, such as ``attention.key_length``; None if absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return None if value is None or value.item_type is not None else _integer_of(value)

    def per_layer(self, key: str, layer: int) -> int:
        """An integer that is one for all layers or an array with one for each; 0 if absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return 0
        return self.integer(key) or 0 if value.item_type is None else int(value.items()[layer])

    def head_count(self, layer: int) -> int:
        """Of a layer's queries."""
        return max(1, self.per_layer("attention.head_count", layer))

    def head_size(self, which: Literal["key", "value"]) -> int:
        """Items of one head's key or value."""
        return self.integer(f"attention.{which}_length") or self.hidden_size // self.head_count(0)

    def has(self, key: str) -> bool:
        """Whether the architecture's own metadata has this key."""
        return f"{self.architecture}.{key}" in self.metadata

    def flags(self, key: str) -> list[bool] | None:
        """A yes or no for each layer, from an array of the architecture's metadata; None if there is no array."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None or value.item_type is None or value.item_count < self.layer_count:
            return None
        return [bool(item) for item in value.items()[: self.layer_count]]

    @property
    def is_local(self) -> bool:
        return self.origin is None

    @property
    def name(self) -> str:
        """What people call the model: ``SmolLM2-135M-Instruct`` for ``SmolLM2-135M-Instruct.Q4_1.gguf``.

        Publishers put the public name on the file; ``general.name`` is often a training run's.
        """
        file_name = self.path.name if self.origin is None else self.origin.file_name
        stem = _QUANTIZATION_SUFFIX.sub("", file_name.removesuffix(".gguf"))
        best = self.general_name if _NAMELESS_STEMS.fullmatch(stem) and self.general_name else stem
        return re.sub(r"[^A-Za-z0-9._]+", "-", best).strip("-.") or "model"

    def card(self, cache_dir: Path) -> ModelCard:
        """What to tell others of this model. Hashes the whole file the first time."""
        return ModelCard(
            name=self.name,
            fingerprint=self.fingerprint(cache_dir),
            architecture=self.architecture,
            layer_count=self.layer_count,
            hidden_size=self.hidden_size,
            context_tokens=self.context_tokens,
        )

    def fingerprint(self, cache_dir: Path) -> str:
        """SHA-256 over the manifest, in hex; remembered under ``cache_dir`` by path, size and time of change.

        Of a remote model: what its origin says of the file.
        """
        if self.origin is not None:
            return self.origin.fingerprint
        return manifest_fingerprint(self.cached_manifest(cache_dir))

    def cached_manifest(self, cache_dir: Path) -> "Manifest":
        """The manifest of a local file; hashes all of it the first time."""
        state = self.path.stat()
        identity = f"{self.path.resolve()}\n{state.st_size}\n{state.st_mtime_ns}"
        remembered = cache_dir / "manifests" / hashlib.sha256(identity.encode()).hexdigest()
        try:
            return msgspec.json.decode(remembered.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError):
            manifest = self.manifest()
        try:
            write_atomically(remembered, msgspec.json.encode(manifest))
        except OSError as error:
            raise ModelFileError(
                f"cannot write to {cache_dir} ({error.strerror}): make room there, or set --cache-dir"
            ) from error
        return manifest

    def manifest(self) -> "Manifest":
        """One SHA-256 for every metadata value and every tensor, by name; type and shape are hashed with it."""
        return Manifest(
            metadata=self.metadata_hashes(),
            tensors={name: hash_tensor(tensor, tensor.data.data) for name, tensor in self.tensors.items()},
        )

    def metadata_hashes(self) -> dict[str, str]:
        return {
            key: hashlib.sha256(b"%d\n%b" % (value.value_type, value.raw.tobytes())).hexdigest()
            for key, value in self.metadata.items()
        }


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Where the weights of a model lie whose header alone is here."""

    source: TensorSource
    file_name: str
    fingerprint: str
    manifest: "Manifest | None" = None
    """To check tensors against as they arrive, where whoever has the whole file made one."""
    on_progress: Callable[[int, int], None] = lambda _done, _total: None
    """Told how many bytes of how many have arrived."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    metadata: dict[str, str]
    tensors: dict[str, str]


def manifest_fingerprint(manifest: Manifest) -> str:
    content = {"metadata": manifest.metadata, "tensors": manifest.tensors}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that others see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def hash_tensor(tensor: ReaderTensor, data: Any) -> str:
    """Of a tensor's type, shape and bytes (``data``)."""
    digest = hashlib.sha256(f"{tensor.tensor_type.name} {tensor.shape.tolist()}\n".encode())
    digest.update(data)
    return digest.hexdigest()


def _read(path: Path) -> GGUFReader:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ModelFileError(f"cannot read the model: {error}") from error
    if magic != _GGUF_MAGIC:
        raise ModelFileError(f"{path} is not a GGUF file; give a model in llama.cpp's format")
    try:
        reader = _Reader(path)
    except _READER_ERRORS as error:
        raise ModelFileError(f"{path} is damaged or cut short ({error}); fetch it again") from error
    if reader.byte_order != "I":
        raise ModelFileError(f"{path} was made for machines of the other byte order; convert it again on this one")
    return reader


def _integer_of(value: MetadataValue) -> int | None:
    dtype = GGUFReader.gguf_scalar_to_np.get(value.value_type)
    if dtype is None or not np.issubdtype(dtype, np.integer):
        return None
    return int(value.raw.view(dtype)[0])


class _Facts:
    """The reader's fields, asked for by type."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self._path = path
        self._values = {
            name: _value_of(field.parts, field.types)
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")
        }

    def values(self) -> dict[str, MetadataValue]:
        return self._values

    def integer(self, key: str) -> int | None:
        value = self._values.get(key)
        return None if value is None else _integer_of(value)

    def required(self, key: str) -> int:
        number = self.integer(key)
        if number is None or number < 1:
            raise ModelFileError(f"{self._path} has no usable {key}; it is no model that llama.cpp can run")
        return number

    def text(self, key: str) -> str:
        value = self._values.get(key)
        if value is None or value.value_type is not GGUFValueType.STRING:
            return ""
        return value.raw[8:].tobytes().decode("utf-8", errors="replace")


def _value_of(parts: list[npt.NDArray[Any]], types: list[GGUFValueType]) -> MetadataValue:
    # A field's first three parts are its key's length, its key and its type.
    raw = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts[3:]])
    return MetadataValue(types[0], types[1] if len(types) > 1 else None, raw)
