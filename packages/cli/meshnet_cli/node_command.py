"""``meshnet node``: hold a range of a model's layers and join a mesh."""

from pathlib import Path
from typing import Annotated

import typer

from meshnet_cli.errors import CommandError
from meshnet_cli.keys import one_key
from meshnet_cli.logs import configure_logs
from meshnet_cli.paths import default_cache_dir, default_wallet
from meshnet_cli.server_options import LogJson, TlsCa, TlsCert, TlsKey
from meshnet_cli.tls import client_context, server_context
from meshnet_node.server import run_node
from meshnet_node.settings import NodeSettings
from meshnet_node.upstream_server import run_upstream
from meshnet_protocol.layers import LayerRange

WALLET_DEFAULT = default_wallet()
CACHE_DIR_DEFAULT = default_cache_dir()


def parse_layers(text: str) -> LayerRange:
    try:
        return LayerRange.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


AUTO_LAYERS = LayerRange(0, 99_999)
"""What ``--layers auto`` parses to: a range no model has."""


def parse_layers_or_auto(text: str) -> LayerRange:
    return AUTO_LAYERS if text.strip() == "auto" else parse_layers(text)


def node(
    model: Annotated[
        str | None,
        typer.Option(
            envvar="MESHNET_MODEL",
            help="A .gguf file, an http(s) URL, owner/repository:file.gguf of Hugging Face, mesh:NAME for a model "
            "that other nodes have, or a model package: 'smollm2', which comes with the set-up, or 'gemma3-270m'.",
        ),
    ] = None,
    layers: Annotated[
        LayerRange | None,
        typer.Option(
            envvar="MESHNET_LAYERS",
            parser=parse_layers_or_auto,
            metavar="FIRST-LAST",
            help="Layers to hold, both included, counted from 0; 'auto' for those the tracker finds weakest. "
            "Default: all of them.",
        ),
    ] = None,
    tracker: Annotated[
        str, typer.Option(envvar="MESHNET_TRACKER", help="The tracker's base URL.")
    ] = "http://127.0.0.1:8090",
    host: Annotated[
        str, typer.Option(envvar="MESHNET_NODE_HOST", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="MESHNET_NODE_PORT", help="Port to listen on; 0 for any free one.")
    ] = 8091,
    advertise: Annotated[
        str | None,
        typer.Option(
            envvar="MESHNET_ADVERTISE", help="Base URL others reach this node by. Default: made of host and port."
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            envvar="MESHNET_INSTANCE", help="Name of this node among its owner's. Default: host name and port."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(envvar="MESHNET_THREADS", help="Threads that compute.")] = 1,
    slots: Annotated[int, typer.Option(envvar="MESHNET_SLOTS", help="Chats this node runs at the same time.")] = 4,
    context_tokens: Annotated[
        int, typer.Option(envvar="MESHNET_CONTEXT_TOKENS", help="Longest chat, prompt and answer together, per slot.")
    ] = 4096,
    chunk_tokens: Annotated[
        int,
        typer.Option(
            envvar="MESHNET_CHUNK_TOKENS",
            help="Prompt tokens computed at once, at most; 32 while others are being answered.",
        ),
    ] = 128,
    queue: Annotated[
        int, typer.Option(envvar="MESHNET_QUEUE", help="Chats that may wait for a slot; more are sent elsewhere.")
    ] = 8,
    queue_timeout: Annotated[
        float, typer.Option(envvar="MESHNET_QUEUE_TIMEOUT", help="Seconds a chat may wait for a slot.")
    ] = 2.0,
    exact: Annotated[
        str,
        typer.Option(
            envvar="MESHNET_EXACT",
            metavar="auto|on|off",
            help="auto: test whether results are exact, and say so; on: refuse to start if not; "
            "off: no test, and quicker long prompts.",
        ),
    ] = "auto",
    gpu_layers: Annotated[
        int,
        typer.Option(
            envvar="MESHNET_GPU_LAYERS", help="Layers to put on the GPU; needs a GPU build of llama.cpp; -1 for all."
        ),
    ] = 0,
    layer_delay_ms: Annotated[
        float,
        typer.Option(
            envvar="MESHNET_LAYER_DELAY_MS",
            help="Pretend to be slower: wait this long per layer in every step. For demos and benchmarks only.",
        ),
    ] = 0.0,
    upstream: Annotated[
        str | None,
        typer.Option(
            envvar="MESHNET_UPSTREAM",
            help="Instead of holding layers, stand in front of this OpenAI-compatible server (vLLM, Ollama, ...).",
        ),
    ] = None,
    upstream_key: Annotated[
        str | None, typer.Option(envvar="MESHNET_UPSTREAM_KEY", help="API key for --upstream.")
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(envvar="MESHNET_MODEL_NAME", help="Which model of --upstream. Default: its only one."),
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(envvar="MESHNET_DRAIN_TIMEOUT", help="Seconds that running chats get to end after SIGTERM.")
    ] = 30.0,
    wallet: Annotated[
        Path, typer.Option(envvar="MESHNET_WALLET", help="Ed25519 key file; made on first start.")
    ] = WALLET_DEFAULT,
    join_token: Annotated[
        str | None,
        typer.Option(
            envvar="MESHNET_JOIN_TOKEN", metavar="TOKEN", help="The tracker's join token, if it asks for one."
        ),
    ] = None,
    join_token_file: Annotated[
        Path | None, typer.Option(envvar="MESHNET_JOIN_TOKEN_FILE", help="A file with the join token.")
    ] = None,
    tracker_key: Annotated[
        str | None,
        typer.Option(
            envvar="MESHNET_TRACKER_KEY",
            metavar="HEX",
            help="Trust tickets of this key only; the tracker logs it at start. Default: the key it greets with.",
        ),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    cache_dir: Annotated[
        Path, typer.Option(envvar="MESHNET_CACHE_DIR", help="Where slices of model files are kept.")
    ] = CACHE_DIR_DEFAULT,
    log_json: LogJson = False,
) -> None:
    """Hold a range of a model's layers and serve them to a mesh.

    Example: meshnet node --model smollm2 --layers 0-16 --tracker http://192.0.2.7:8090 --host 0.0.0.0
    """
    configure_logs(as_json=log_json)
    if (model is None) == (upstream is None):
        raise CommandError("give either --model, to hold layers of it, or --upstream, to stand in front of a server")
    run = run_node if upstream is None else run_upstream
    run(
        NodeSettings(
            model=model or "",
            upstream=upstream,
            upstream_key=upstream_key,
            model_name=model_name,
            layers=None if layers == AUTO_LAYERS else layers,
            asks_for_layers=layers == AUTO_LAYERS,
            tracker=tracker,
            wallet=wallet,
            cache_dir=cache_dir,
            host=host,
            port=port,
            advertise=advertise,
            instance=instance,
            threads=threads,
            slots=slots,
            context_tokens=context_tokens,
            chunk_tokens=chunk_tokens,
            queue=queue,
            queue_timeout_s=queue_timeout,
            exact=exact,
            gpu_layers=gpu_layers,
            layer_delay_ms=layer_delay_ms,
            drain_timeout_s=drain_timeout,
            join_token=one_key(join_token, join_token_file, flag="--join-token"),
            tracker_key=tracker_key,
            server_tls=server_context(tls_cert, tls_key),
            client_tls=client_context(tls_ca),
        )
    )
