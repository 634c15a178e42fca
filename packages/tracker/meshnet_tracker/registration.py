"""Which registrations can be true at all: the checks that need nothing but the registration itself.

What contradicts *other* nodes (a different card of the same model, a node id of another wallet) is
for the fleet to refuse, because only the fleet knows them.
"""

import re
from urllib.parse import urlsplit

from meshnet_protocol.ids import INSTANCE_PATTERN
from meshnet_protocol.messages import PROTOCOL_VERSION, ModelCard, Registration
from meshnet_tracker.errors import RegistrationRefusedError

LAYERS_MAX = 10_000
NAME_CHARS_MAX = 200
SLOTS_MAX = 100_000
EXACTNESS_CHARS_MAX = 2000

# Node ids and model names stand inside signatures and HTTP headers, so they must not contain their punctuation.
_WALLET = re.compile(r"[A-Za-z0-9._:+/=-]{1,200}")
_MODEL_NAME = re.compile(r"[!-~]+( [!-~]+)*")
LAYER_TOKENS_PER_S_MAX = 1e7
"""Ten times what the fastest machine decodes: more is a mistake or a lie, and would look like the best route."""


def check_registration(registration: Registration) -> None:
    """Raises RegistrationRefusedError, saying what to change, if the registration cannot be true."""
    if registration.protocol_version != PROTOCOL_VERSION:
        raise RegistrationRefusedError(
            f"the node speaks protocol {registration.protocol_version}, this tracker speaks {PROTOCOL_VERSION}: "
            "update the older of the two"
        )
    _check_identity(registration)
    _check_card(registration.model)
    _check_layers(registration)
    _check_url(registration.url)
    if not 0 < registration.layer_tokens_per_s <= LAYER_TOKENS_PER_S_MAX:
        raise RegistrationRefusedError(
            f"layer_tokens_per_s {registration.layer_tokens_per_s} is not between 0 and {LAYER_TOKENS_PER_S_MAX:g}"
        )
    if not 1 <= registration.slots <= SLOTS_MAX:
        raise RegistrationRefusedError(f"slots {registration.slots} is not between 1 and {SLOTS_MAX}")
    exactness = registration.exactness
    if len(exactness.mode) + len(exactness.class_id) + len(exactness.description) > EXACTNESS_CHARS_MAX:
        raise RegistrationRefusedError(f"exactness must be told in at most {EXACTNESS_CHARS_MAX} characters")


def _check_identity(registration: Registration) -> None:
    if not _WALLET.fullmatch(registration.wallet):
        raise RegistrationRefusedError(f"wallet {registration.wallet[:NAME_CHARS_MAX]!r} is not a wallet id")
    if not INSTANCE_PATTERN.fullmatch(registration.instance):
        raise RegistrationRefusedError(
            f"instance {registration.instance[:NAME_CHARS_MAX]!r} is not 1 to 32 of a-z, 0-9 and inner '-'"
        )
    if not 1 <= len(registration.incarnation) <= NAME_CHARS_MAX:
        raise RegistrationRefusedError(f"incarnation must have 1 to {NAME_CHARS_MAX} characters")


def _check_card(card: ModelCard) -> None:
    if not _MODEL_NAME.fullmatch(card.name) or len(card.name) > NAME_CHARS_MAX:
        raise RegistrationRefusedError(
            f"model name {card.name[:NAME_CHARS_MAX]!r} is not 1 to {NAME_CHARS_MAX} printable ASCII characters"
        )
    if not re.fullmatch(r"[!-~]{1,200}", card.fingerprint):
        raise RegistrationRefusedError(f"model fingerprint {card.fingerprint[:NAME_CHARS_MAX]!r} is not a fingerprint")
    if not 1 <= card.layer_count <= LAYERS_MAX:
        raise RegistrationRefusedError(f"layer_count {card.layer_count} is not between 1 and {LAYERS_MAX}")
    if card.hidden_size < 1 or card.context_tokens < 1:
        raise RegistrationRefusedError(
            f"hidden_size {card.hidden_size} and context_tokens {card.context_tokens} must be at least 1"
        )


def _check_layers(registration: Registration) -> None:
    first, last, layer_count = registration.shard.first, registration.shard.last, registration.model.layer_count
    if not 0 <= first <= last < layer_count:
        raise RegistrationRefusedError(
            f"shard {first}-{last} does not lie within the model's layers 0-{layer_count - 1}"
        )
    outside = [layer for layer in registration.entry_layers if not first <= layer <= last]
    if outside:
        raise RegistrationRefusedError(f"entry layer {outside[0]} lies outside the shard {first}-{last}")
    if first not in registration.entry_layers:
        raise RegistrationRefusedError(f"entry_layers must contain the shard's first layer, {first}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        has_address = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise RegistrationRefusedError(f"url {url[:NAME_CHARS_MAX]!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not has_address or parts.query or parts.fragment:
        raise RegistrationRefusedError(f"url {url[:NAME_CHARS_MAX]!r} is not http(s)://host:port")
