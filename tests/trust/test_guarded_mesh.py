"""A mesh with everything on: TLS from an authority made here, keys, a join token. Real processes, the real model."""

import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import trustme

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.errors import CommandError
from meshnet_cli.tls import client_context, server_context
from meshnet_cli.tracker_api import get_json
from meshnet_node.errors import ModelFileError
from meshnet_node.model_source import open_model
from meshnet_node.tracker_client import Membership
from meshnet_node.tracker_reads import TrackerReads
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_node.wallet import Wallet

API_KEY, ADMIN_KEY, TOKEN = "sk-client-4711-4711", "sk-owner-0815-0815", "join-token-1234-5678"
QUESTION = "What is the capital of France? Answer in one sentence."
MODEL = "SmolLM2-135M-Instruct"


@dataclass
class Certificates:
    cert: Path
    key: Path
    ca: Path


def make_certificates(folder: Path) -> Certificates:
    made = Certificates(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(made.ca)
    server.private_key_pem.write_to_path(made.key)
    for blob in server.cert_chain_pems:
        blob.write_to_path(made.cert, append=True)
    return made


@dataclass
class Guarded:
    mesh: Mesh
    certificates: Certificates

    def client(self, key: str) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(self.certificates.ca)))
        return openai.OpenAI(base_url=f"{self.mesh.url}/v1", api_key=key, http_client=http, max_retries=0, timeout=60)

    def chat(self, key: str) -> str:
        with self.client(key) as client:
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=16
            )
        return answer.choices[0].message.content or ""

    def everything_written(self) -> bytes:
        """All logs, and the tracker's database with what SQLite keeps beside it."""
        kept = [path for path in self.mesh.folder.iterdir() if path.suffix != ".pem"]
        assert any(path.name.startswith("tracker.db") for path in kept)
        return b"".join(path.read_bytes() for path in kept)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    (tokens := folder.parent / "join-tokens").write_text(f"# who knows this may join\n{TOKEN}\n")
    settings = {
        "MESHNET_TLS_CERT": str(certificates.cert),
        "MESHNET_TLS_KEY": str(certificates.key),
        "MESHNET_TLS_CA": str(certificates.ca),
        "MESHNET_JOIN_TOKEN_FILE": str(tokens),
        "MESHNET_API_KEYS": f"another-key-0000,{API_KEY}",
        "MESHNET_ADMIN_KEY": ADMIN_KEY,
        "MESHNET_API_KEY": ADMIN_KEY,
    }
    with pytest.MonkeyPatch.context() as patch, Mesh(folder, free_port(0), "smollm2") as mesh:
        for name, value in settings.items():
            patch.setenv(name, value)
        mesh.url = mesh.url.replace("http://", "https://")
        mesh.start_tracker()
        mesh.start_node("first", "0-16", layer_delay_ms=0)
        mesh.start_node("last", "17-29", layer_delay_ms=0)
        mesh.wait_node("first", entry_layers=[0])
        mesh.wait_node("last", entry_layers=[17])
        yield Guarded(mesh, certificates)


def test_a_chat_with_a_key_runs_over_two_nodes_and_every_step_of_it_is_encrypted(guarded: Guarded) -> None:
    assert "Paris" in guarded.chat(API_KEY)
    nodes = get_json(guarded.mesh.url, "/v1/nodes")["nodes"]
    assert {node["url"].partition(":")[0] for node in nodes} == {"https"}
    arms = [arm for model in get_json(guarded.mesh.url, "/v1/routing")["models"] for arm in model["candidates"]]
    assert [len(arm["hops"]) for arm in arms] == [2]
    assert arms[0]["samples"] >= 1


def test_without_a_key_a_client_gets_a_401_that_openais_library_knows(guarded: Guarded) -> None:
    with pytest.raises(openai.AuthenticationError) as refused:
        guarded.chat("a-key-that-is-not-one")
    assert refused.value.code == "invalid_api_key"


def test_who_does_not_know_the_authority_does_not_trust_the_tracker(guarded: Guarded) -> None:
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{guarded.mesh.url}/health", context=ssl.create_default_context())


def test_terminal_commands_send_the_key_of_the_environment(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "meshnet_cli", "status", "--json", "--tracker", guarded.mesh.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.delenv("MESHNET_API_KEY")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "MESHNET_API_KEY" in refused.stderr


def test_a_node_without_the_token_is_told_so_and_ends(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHNET_JOIN_TOKEN_FILE")
    arguments = ["node", "--model", "smollm2", "--layers", "28-29", "--port", "0", "--tracker", guarded.mesh.url]
    arguments += ["--wallet", str(guarded.mesh.folder.parent / "stranger.pem"), "--instance", "stranger"]
    done = subprocess.run(
        [sys.executable, "-m", "meshnet_cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "a join token is needed" in done.stderr.strip().splitlines()[-1]


def test_a_nodes_model_file_is_handed_to_members_and_to_nobody_else(guarded: Guarded, tmp_path: Path) -> None:
    node = get_json(guarded.mesh.url, "/v1/nodes")["nodes"][0]
    tls = ssl.create_default_context(cafile=str(guarded.certificates.ca))
    for part in ("", "/file", "/manifest"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{node['url']}/v1/models/{node['model']}{part}", context=tls)
        with refused.value:
            assert refused.value.code == 401
            assert b"no_pass" in refused.value.read()

    def reads(token: str) -> TrackerReads:
        wallet = Wallet.load_or_create(tmp_path / "newcomer.pem")
        return TrackerReads(guarded.mesh.url, Membership(wallet, TrackerTrust(), token), tls)

    assert open_model(f"mesh:{MODEL}", cache_dir=tmp_path, tracker=reads(TOKEN)).layer_count == 30
    with pytest.raises(ModelFileError, match="cannot say who has"):
        open_model(f"mesh:{MODEL}", cache_dir=tmp_path, tracker=reads("another-token-0000"))


def test_neither_secrets_nor_what_was_said_is_written_anywhere(guarded: Guarded) -> None:
    """After the chats and refusals above, and one more of each."""
    answer = guarded.chat(API_KEY)
    assert "Paris" in answer
    with pytest.raises(openai.AuthenticationError):
        guarded.chat("a-key-that-is-not-one")
    calls = get_json(guarded.mesh.url, "/v1/calls")["calls"]
    events = get_json(guarded.mesh.url, "/v1/events")["events"]
    guarded.mesh.children[0].stop()  # The last calls are written when the tracker ends.
    written = guarded.everything_written() + repr((calls, events)).encode()

    wallets = (guarded.mesh.folder / "wallet.pem").read_text().splitlines()[1]
    tracker_key = (guarded.mesh.folder / "tracker.pem").read_text().splitlines()[1]
    secrets = (API_KEY, ADMIN_KEY, TOKEN, wallets, tracker_key, "a-key-that-is-not-one", "eyJ")
    assert [secret for secret in secrets if secret.encode() in written] == []
    assert [text for text in (QUESTION, "capital of France", "Paris") if text.encode() in written] == []
    assert b"chat finished" in written, "there is a log, and it tells of the chat"


def test_key_files_are_their_owners_alone(guarded: Guarded) -> None:
    for name in ("wallet.pem", "tracker.pem"):
        assert os.stat(guarded.mesh.folder / name).st_mode & 0o777 == 0o600


def test_certificates_that_cannot_work_are_refused_by_their_flag(tmp_path: Path) -> None:
    made, others = make_certificates(tmp_path), tmp_path / "others"
    others.mkdir()
    other = make_certificates(others)
    with pytest.raises(CommandError, match="--tls-key"):
        server_context(made.cert, None)
    with pytest.raises(CommandError, match="--tls-cert"):
        server_context(made.cert, other.key)
    with pytest.raises(CommandError, match="--tls-cert"):
        server_context(tmp_path / "absent.pem", made.key)
    with pytest.raises(CommandError, match="--tls-ca"):
        client_context(made.key)
    assert server_context(None, None) is None
    assert client_context(None) is None
