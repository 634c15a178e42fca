"""Identities, and the texts they are made of.

A node id embeds owner, machine and shard, so that a machine which comes back with other layers is
another node, and therefore another arm; two machines of one owner never share an id.
"""

import re
from typing import NewType

from meshnet_protocol.layers import LayerRange

NodeId = NewType("NodeId", str)
WalletId = NewType("WalletId", str)
Incarnation = NewType("Incarnation", str)
ModelKey = NewType("ModelKey", str)
Signature = NewType("Signature", str)
SessionId = NewType("SessionId", str)

INSTANCE_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
WALLET_SHORT_CHARS = 12
FINGERPRINT_SHORT_CHARS = 12


def make_node_id(*, wallet: WalletId, instance: str, shard: LayerRange) -> NodeId:
    """``instance.wallet@first-last``, with the wallet cut to its first 12 characters.

    Raises ValueError if the instance is not 1 to 32 of ``a-z``, ``0-9`` and inner ``-``.
    """
    if not INSTANCE_PATTERN.fullmatch(instance):
        raise ValueError(f"instance name {instance!r} must be 1 to 32 of a-z, 0-9 and '-' (not at either end)")
    return NodeId(f"{instance}.{wallet[:WALLET_SHORT_CHARS]}@{shard}")


def make_model_key(*, name: str, fingerprint: str) -> ModelKey:
    """``name@fingerprint``, with the fingerprint cut to 12 characters: shards of different files never mix."""
    return ModelKey(f"{name}@{fingerprint[:FINGERPRINT_SHORT_CHARS]}")
