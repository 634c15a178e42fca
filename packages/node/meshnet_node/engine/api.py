"""What the rest of a node knows of the engine."""

from meshnet_node.engine.architectures import check_cut
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import SLICE_FORMAT, cached_slice, read_slice_name
from meshnet_node.engine.grammar import GrammarWriter, grammar_of_schema
from meshnet_node.engine.held_file import HeldFile
from meshnet_node.engine.memory import MemoryNeed, available_memory, check_memory, megabytes, memory_need
from meshnet_node.engine.thread import Engine, EngineOptions, EngineSession, StepInput, StepResult
from meshnet_node.engine.vocabulary import RenderedChat, Vocabulary

__all__ = [
    "SLICE_FORMAT",
    "Engine",
    "EngineOptions",
    "EngineSession",
    "GrammarWriter",
    "HeldFile",
    "MemoryNeed",
    "ModelFile",
    "RenderedChat",
    "StepInput",
    "StepResult",
    "Vocabulary",
    "available_memory",
    "cached_slice",
    "check_cut",
    "check_memory",
    "grammar_of_schema",
    "megabytes",
    "memory_need",
    "read_slice_name",
]
