"""What the rest of a node knows of the engine."""

from meshnet_node.engine.grammar import GrammarWriter, grammar_of_schema
from meshnet_node.engine.thread import Engine, EngineOptions, EngineSession, StepInput, StepResult
from meshnet_node.engine.vocabulary import RenderedChat, Vocabulary

__all__ = [
    "Engine",
    "EngineOptions",
    "EngineSession",
    "GrammarWriter",
    "RenderedChat",
    "StepInput",
    "StepResult",
    "Vocabulary",
    "grammar_of_schema",
]
