"""What the rest of a node knows of the engine."""

from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.held_file import HeldFile
from meshnet_node.engine.thread import Engine, EngineOptions, EngineSession, StepInput, StepResult
from meshnet_node.engine.vocabulary import Vocabulary

__all__ = ["Engine", "EngineOptions", "EngineSession", "HeldFile", "ModelFile", "StepInput", "StepResult", "Vocabulary"]
