"""What a KV cache holds its items in.

The attention of llama.cpp's CPU backend gives a row the same bits whoever is computed beside it, but not if keys and
values are both F16: then it works in tiles from 64 rows up, and cuts long contexts between its threads
(``ggml_compute_forward_flash_attn_ext_f16``). So the keys of an exact node are Q8_0, or BF16 where a head's size is
not a whole number of blocks. Its values are F16: they are added up as they are, where those of another type are made
floats first, one row of values for each row of queries. Behind 1,500 tokens that takes a fifth off a decode.

GPUs have fast attention for equal types only, so there the values are as the keys.
"""

from dataclasses import dataclass

import llama_cpp

from meshnet_node.engine.gguf_file import ModelFile

_BLOCK_ITEMS = 32


@dataclass(frozen=True, slots=True)
class ItemType:
    """One of ggml's types."""

    name: str
    number: int
    """In ``enum ggml_type``."""
    bytes_per_item: float


Q8_0 = ItemType("Q8_0", llama_cpp.GGML_TYPE_Q8_0, 34 / _BLOCK_ITEMS)
F16 = ItemType("F16", llama_cpp.GGML_TYPE_F16, 2)
BF16 = ItemType("BF16", 30, 2)  # llama-cpp-python has no name for it


@dataclass(frozen=True, slots=True)
class CacheTypes:
    key: ItemType
    value: ItemType

    def __str__(self) -> str:
        return self.key.name if self.key == self.value else f"{self.key.name} keys, {self.value.name} values"


def cache_types(model: ModelFile, *, is_exact: bool, on_gpu: bool) -> CacheTypes:
    """What a node that has to be exact, or not, holds this model's keys and values in."""
    if not is_exact:
        return CacheTypes(F16, F16)
    key = _quantized(model.head_size("key"))
    return CacheTypes(key, _quantized(model.head_size("value")) if on_gpu else F16)


def _quantized(head_size: int) -> ItemType:
    return Q8_0 if head_size % _BLOCK_ITEMS == 0 else BF16
