"""A node in front of llama-cpp-python's own server: one more route of the mesh, for any OpenAI client."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.tracker_api import get_json
from meshnet_node.model_source import resolve_model

from .conftest import client_of, wait_until

NAME = "some-vendor/smollm2"
QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[str]:
    """The real server of another project, with the real model."""
    port = free_port(0)
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(resolve_model("smollm2")), "--port", str(port)]
    command += ["--model_alias", NAME, "--n_threads", "1", "--n_ctx", "512"]
    with (tmp_path / "upstream.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: is_up(f"{url}/v1/models"), timeout_s=60)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def start_front(mesh: Mesh, upstream: str) -> None:
    arguments = ["node", "--upstream", upstream, "--instance", "front", "--port", "0", "--tracker", mesh.url]
    mesh.spawn("front", [*arguments, "--wallet", str(mesh.folder / "wallet.pem")])
    wait_until(lambda: len(get_json(mesh.url, "/v1/nodes")["nodes"]) == 1, timeout_s=60)


def test_chats_reach_another_projects_server_through_the_mesh(bare_mesh: Mesh, upstream: str) -> None:
    start_front(bare_mesh, upstream)
    client = client_of(bare_mesh)
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]

    whole = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=16)
    stream = client.chat.completions.create(
        model=NAME,
        messages=messages,
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert whole.choices[0].message.content == text
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 3
    assert chunks[-1].usage is not None
    assert [model.id for model in client.models.list()] == [NAME]
    several = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=8, n=2)
    assert [choice.message.content for choice in several.choices] == [
        text[: len(c.message.content or "")] for c in several.choices
    ]
    completion = client.completions.create(model=NAME, prompt="The capital of France is", temperature=0, max_tokens=6)
    assert "Paris" in completion.choices[0].text
    arm = get_json(bare_mesh.url, "/v1/routing")["models"][0]["candidates"][0]
    assert arm["prior_tps"] > 1
    for call in get_json(bare_mesh.url, "/v1/calls")["calls"]:
        assert call["tps"] > 0
        assert call["hops"][0]["work_units"] == call["prompt_tokens"] + call["completion_tokens"]


def test_an_upstream_that_is_not_there_is_said_at_start() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshnet_cli", "node", "--upstream", "http://127.0.0.1:9", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "cannot be reached" in done.stderr.strip().splitlines()[-1]
