"""Who a node is, and what it refuses to start with."""

import stat
from pathlib import Path
from typing import Any

import pytest

from meshnet_node.errors import SettingsError, WalletError
from meshnet_node.settings import NodeSettings
from meshnet_node.wallet import Wallet


def settings(**changes: Any) -> NodeSettings:
    values: dict[str, Any] = {
        "model": "smollm2",
        "layers": None,
        "tracker": "http://127.0.0.1:8090",
        "wallet": Path("wallet.pem"),
        "cache_dir": Path("cache"),
    }
    return NodeSettings(**(values | changes))


def test_a_wallet_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "wallet.pem"

    first = Wallet.load_or_create(path)

    assert Wallet.load_or_create(path).wallet_id == first.wallet_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first.wallet_id) == 64


def test_a_file_that_is_no_key_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "wallet.pem"
    path.write_text("not a key")

    with pytest.raises(WalletError, match="--wallet"):
        Wallet.load_or_create(path)
    assert path.read_text() == "not a key"


def test_a_wallet_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WalletError, match="file"):
        Wallet.load_or_create(tmp_path / "file" / "wallet.pem")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"threads": 0}, "--threads"),
        ({"slots": 0}, "--slots"),
        ({"context_tokens": 1}, "--context-tokens"),
        ({"chunk_tokens": 0}, "--chunk-tokens"),
        ({"layer_delay_ms": -1.0}, "--layer-delay-ms"),
        ({"layer_delay_ms": float("nan")}, "--layer-delay-ms"),
        ({"layer_delay_ms": float("inf")}, "--layer-delay-ms"),
        ({"tracker": "http://[::1"}, "--tracker"),
        ({"tracker": "http://localhost:99999"}, "--tracker"),
        ({"port": 70000}, "--port"),
        ({"instance": "My Box"}, "--instance"),
        ({"tracker": "127.0.0.1:8090"}, "--tracker"),
        ({"advertise": "ftp://x"}, "--advertise"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_flag(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingsError, match=flag):
        settings(**changes)


def test_a_node_is_known_by_machine_and_port_unless_it_is_named() -> None:
    assert settings().instance_name(8091).endswith("-8091")
    assert settings(instance="gpu-box").instance_name(8091) == "gpu-box"
    assert settings(instance="GPU-Box").instance_name(8091) == "gpu-box"


def test_only_a_node_on_loopback_that_no_proxy_makes_public_is_private() -> None:
    assert settings().is_private
    assert settings(host="::1", advertise="http://localhost:1").is_private
    assert not settings(host="0.0.0.0").is_private
    assert not settings(advertise="https://box.example/").is_private


def test_a_node_that_listens_everywhere_advertises_the_address_that_leads_to_the_tracker() -> None:
    assert settings(host="0.0.0.0").advertised_url(9000) == "http://127.0.0.1:9000"
    assert settings(host="::1").advertised_url(9000) == "http://[::1]:9000"
    assert settings(advertise="https://box.example/").advertised_url(9000) == "https://box.example"
