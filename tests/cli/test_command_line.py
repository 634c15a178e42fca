"""The command line tells people what they can do and, in one line, what they did wrong."""

import os
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.errors import CommandError
from meshnet_cli.tracker_command import parse_aliases
from node.file_server import serving_files
from node.tiny_models import write_tiny


def meshnet(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshnet_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | environment,
        check=False,
    )


@pytest.mark.parametrize("command", ["tracker", "node", "status", "routes", "calls", "chat", "demo"])
def test_every_command_explains_itself_and_names_its_environment_variables(command: str) -> None:
    done = meshnet(command, "--help")

    assert done.returncode == 0
    assert "MESHNET_" in done.stdout


@pytest.mark.parametrize("words", [[], ["bench"], ["model"]], ids=" ".join)
def test_without_a_word_the_commands_are_listed_line_by_line(words: list[str]) -> None:
    done = meshnet(*words)

    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ")
    assert "\nCommands:\n" in done.stderr


@pytest.mark.parametrize("words", [["bench"], ["model"]], ids=" ".join)
def test_a_narrow_terminal_cuts_no_commands_description_short(words: list[str]) -> None:
    described = meshnet(*words, COLUMNS="80").stderr.partition("Commands:")[2]

    assert described.strip()
    assert "..." not in described


def test_models_are_listed_a_line_each_and_so_are_their_paths(tmp_path: Path) -> None:
    (tmp_path / "slices").mkdir()
    kept = tmp_path / "slices" / "Some-Rather-Long-Name-70B-Instruct-Q4_K_M-0123456789abcdef-v3-40-79.gguf"
    kept.write_bytes(b"x" * 5_000_000)
    here = {"MESHNET_CACHE_DIR": str(tmp_path), "COLUMNS": "80"}

    lines = meshnet("model", "list", **here).stdout.splitlines()
    paths = meshnet("model", "list", "--paths", **here).stdout.splitlines()

    (row,) = (line.split() for line in lines if "Rather" in line)
    assert row == ["Some-Rather-Long-Name-70B-Instruct-Q4_K_M@0123456789ab", "40-79", "layers", "5", "MB"]
    assert [line.split(maxsplit=2)[-1] for line in paths[-1:]] == [str(kept)]


def test_a_misspelt_command_is_told_what_was_meant() -> None:
    done = meshnet("stat")

    assert done.returncode == 2
    assert done.stderr.strip() == "meshnet: error: No such command 'stat'. Did you mean 'status'?"


def test_a_command_imports_what_it_needs_and_not_what_others_need() -> None:
    """An engine, a web framework and a client's library take seconds to import on a small machine."""
    script = "import sys, meshnet_cli.main, meshnet_cli.status_command; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert not {"llama_cpp", "fastapi", "openai", "meshnet_tracker.testing"} & set(loaded)


def test_the_version_is_that_of_the_package() -> None:
    assert meshnet("--version").stdout == f"meshnet {version('meshnet-cli')}\n"


@pytest.mark.parametrize("command", ["tracker", "node", "chat", "model inspect", "bench routing"])
def test_a_narrow_terminal_cuts_no_flag_and_no_variable_short(command: str) -> None:
    narrow, wide = (meshnet(*command.split(), "--help", COLUMNS=columns).stdout for columns in ("80", "300"))

    names = re.compile(r"MESHNET_[A-Z_]+|--[a-z-]+")
    assert set(names.findall(narrow)) == set(names.findall(wide))
    assert "…" not in narrow


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["node", "--model", "smollm2", "--layers", "5-3"], "first <= last"),
        (["node", "--model", "smollm2", "--layers", "all"], "0-16"),
        (["node", "--model", "smollm2", "--tracker", "nowhere"], "base URL"),
        (["node", "--model", "smollm2", "--threads", "0"], "--threads"),
        (["node", "--model", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (["node", "--model", "smollm2", "--layers", "0-99"], "0-29"),
        (["node", "--model", "smollm2", "--layers", "3-9", "--cache-dir", "/proc/nope"], "--cache-dir"),
        (["node", "--model", "smollm2", "--chunk-tokens", "9999"], "--chunk-tokens"),
        (["node"], "--model"),
        (["tracker", "--route-explore-share", "1.5"], "--route-explore-share"),
        (["tracker", "--route-weight-alpha", "-1"], "--route-weight-alpha"),
        (["tracker", "--route-stats-half-life", "0"], "--route-stats-half-life"),
        (["tracker", "--route-explore-share", "often"], "--route-explore-share"),
        (["tracker", "--port", "99999"], "--port"),
        (["tracker", "--database", "mysql://a/b"], "sqlite:///FILE"),
        (["status", "--tracker", "http://127.0.0.1:9"], "meshnet tracker"),
        (["routes", "--tracker", "http://127.0.0.1:9"], "meshnet tracker"),
        (["calls", "--follow", "--tracker", "http://127.0.0.1:9"], "meshnet tracker"),
        (["chat", "--tracker", "http://127.0.0.1:9", "hello"], "meshnet tracker"),
        (["model", "inspect", "smollm2", "--cut", "30"], "0-29"),
        (["model", "pull", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (["status", "--tracker", "http://foo bar"], "foo bar"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_value_gets_one_line_that_says_which(arguments: list[str], complaint: str) -> None:
    done = meshnet(*arguments)

    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("meshnet: error: ")
    assert complaint in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MESHNET_ROUTE_EXPLORE_SHARE", "2"),
        ("MESHNET_ROUTE_WEIGHT_ALPHA", "nan"),
        ("MESHNET_ROUTE_STATS_HALF_LIFE", "-5"),
        ("MESHNET_ROUTE_MIN_SAMPLE_TOKENS", "-1"),
    ],
)
def test_a_wrong_environment_variable_is_refused_like_a_wrong_flag(variable: str, value: str) -> None:
    done = meshnet("tracker", "--port", "0", **{variable: value})

    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("meshnet: error: ")


@pytest.mark.parametrize(
    ("texts", "aliases"),
    [
        ([], {}),
        (["a=x"], {"a": "x"}),
        (["a=x", "b=y"], {"a": "x", "b": "y"}),
        (["a=x, b=org/y=z,"], {"a": "x", "b": "org/y=z"}),
    ],
)
def test_aliases_are_pairs_in_flags_or_between_commas(texts: list[str], aliases: dict[str, str]) -> None:
    assert parse_aliases(texts) == aliases


@pytest.mark.parametrize("text", ["a", "=x", "a="])
def test_an_alias_that_is_no_pair_says_how_to_write_it(text: str) -> None:
    with pytest.raises(CommandError, match="ALIAS=MODEL"):
        parse_aliases([text])


def test_inspecting_a_model_shows_what_each_side_of_a_cut_needs() -> None:
    done = meshnet("model", "inspect", "smollm2", "--cut", "17")

    assert done.returncode == 0
    assert "llama, 30 layers" in done.stdout
    assert "0-16" in done.stdout
    assert "17-29" in done.stdout


def test_a_pull_shows_a_bar_that_fits_and_nothing_where_nothing_is_fetched(tmp_path: Path) -> None:
    name = "/Some-Rather-Long-Model-Name-70B-Instruct-UD-Q4_K_M.gguf"
    model = write_tiny(tmp_path / "tiny.gguf", "qwen3", layer_count=12, tied=False)
    terminal = {"COLUMNS": "80", "FORCE_COLOR": "1", "MESHNET_CACHE_DIR": str(tmp_path)}
    with serving_files({name: model.read_bytes()}) as server:
        pull = ("model", "pull", f"{server.url}{name}", "--layers", "3-5")
        first, second = meshnet(*pull, **terminal), meshnet(*pull, **terminal)

    told = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", first.stderr).splitlines()]
    assert f"fetching {name[1:]}" in told
    assert any(re.search(r" ([\d.,]+)/\1 \w+ ", line) for line in told), told
    assert max(map(len, told)) <= 80
    assert first.stdout == second.stdout
    assert "fetching" not in second.stderr


def test_pruning_deletes_what_nobody_loaded_for_long_and_nothing_else(tmp_path: Path) -> None:
    files = ("slices/old.gguf", "slices/.unfinished.gguf.1.ab", "downloads/ab/old.gguf", "slices/new.gguf", "headers/h")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 5000)
    for name in (*files[:3], files[4]):
        os.utime(tmp_path / name, (1.0, 1.0))

    told = meshnet("model", "prune", "--dry-run", "--cache-dir", str(tmp_path))
    kept_by_dry_run = [name for name in files if (tmp_path / name).exists()]
    done = meshnet("model", "prune", "--cache-dir", str(tmp_path))

    assert (told.returncode, done.returncode) == (0, 0)
    assert "could be freed" in told.stdout
    assert kept_by_dry_run == list(files)
    assert [name for name in files if (tmp_path / name).exists()] == ["slices/new.gguf", "headers/h"]


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (["tracker"], ["node", "--model", "smollm2"]):
            done = meshnet(*command, "--port", port)
            assert done.returncode == 2
            assert done.stderr.strip().splitlines()[-1].startswith("meshnet: error: cannot listen on 127.0.0.1")


def test_a_node_the_tracker_refuses_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHNET_JOIN_TOKEN", "only-friends-know-this")
    with Mesh(tmp_path, free_port(0), "smollm2") as mesh:
        mesh.start_tracker()
        monkeypatch.delenv("MESHNET_JOIN_TOKEN")
        files = ("--wallet", str(tmp_path / "wallet.pem"))
        done = meshnet("node", "--model", "smollm2", "--layers", "28-29", "--port", "0", "--tracker", mesh.url, *files)

    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("meshnet: error: the tracker at")
    assert "--join-token" in last
