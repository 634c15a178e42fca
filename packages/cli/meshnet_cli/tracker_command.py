"""``meshnet tracker``: the endpoint that clients talk to, and that learns which routes are fast."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from meshnet_cli.errors import CommandError
from meshnet_cli.keys import gather_keys, split_list
from meshnet_cli.logs import configure_logs
from meshnet_cli.paths import default_cache_dir, default_database, default_tracker_key
from meshnet_cli.server_options import LogJson, TlsCa, TlsCert, TlsKey
from meshnet_cli.tls import client_context, server_context
from meshnet_node.model_catalog import whole_models
from meshnet_node.wallet import load_or_create_key
from meshnet_protocol.ids import WalletId
from meshnet_tracker.candidates import ROUTE_CANDIDATES_MAX
from meshnet_tracker.policies import POLICIES
from meshnet_tracker.policies.proportional import PROPORTIONAL
from meshnet_tracker.server import run_tracker
from meshnet_tracker.settings import StoredModel, TrackerSettings

MIN_SAMPLE_TOKENS_VARIABLE = "MESHNET_ROUTE_MIN_SAMPLE_TOKENS"
MIN_SAMPLE_TOKENS_DEFAULT = 8
DATABASE_DEFAULT = default_database()
KEY_FILE_DEFAULT = default_tracker_key()
CACHE_DIR_DEFAULT = default_cache_dir()
NO_DATABASE = "none"


def tracker(
    host: Annotated[
        str, typer.Option(envvar="MESHNET_TRACKER_HOST", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="MESHNET_TRACKER_PORT", help="Port to listen on; 0 for any free one.")
    ] = 8090,
    heartbeat_period: Annotated[
        float,
        typer.Option(
            envvar="MESHNET_HEARTBEAT_PERIOD",
            help="Seconds between a node's heartbeats; after three missed ones it is taken for dead.",
        ),
    ] = 1.0,
    route_explore_share: Annotated[
        float,
        typer.Option(
            envvar="MESHNET_ROUTE_EXPLORE_SHARE",
            help="Share of requests that scout routes not proven yet, 0 to 1. With much traffic: 0.05 to 0.1.",
        ),
    ] = 0.3,
    route_weight_alpha: Annotated[
        float,
        typer.Option(
            envvar="MESHNET_ROUTE_WEIGHT_ALPHA",
            help="Proven routes get traffic in proportion to tokens/s to this power; above 1 favours the fastest.",
        ),
    ] = 1.0,
    route_stats_half_life: Annotated[
        float, typer.Option(envvar="MESHNET_ROUTE_STATS_HALF_LIFE", help="Seconds until a measurement counts half.")
    ] = 600.0,
    route_policy: Annotated[
        str,
        typer.Option(
            envvar="MESHNET_ROUTE_POLICY",
            help=f"How routes are chosen: {' or '.join(POLICIES)}. Adaptive learns per node and heeds load.",
        ),
    ] = PROPORTIONAL,
    route_candidates_max: Annotated[
        int,
        typer.Option(
            envvar="MESHNET_ROUTE_CANDIDATES_MAX",
            help="Routes listed at most; proportional chooses among these, adaptive among all.",
        ),
    ] = ROUTE_CANDIDATES_MAX,
    token_timeout: Annotated[
        float,
        typer.Option(
            envvar="MESHNET_TOKEN_TIMEOUT",
            help="Seconds a route may give no sign of life before another one takes the chat over.",
        ),
    ] = 30.0,
    chat_timeout: Annotated[
        float, typer.Option(envvar="MESHNET_CHAT_TIMEOUT", help="Seconds a chat may take in all.")
    ] = 3600.0,
    drain_timeout: Annotated[
        float,
        typer.Option(
            envvar="MESHNET_TRACKER_DRAIN_TIMEOUT", help="Seconds that running chats get to end after SIGTERM."
        ),
    ] = 30.0,
    model_alias: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHNET_MODEL_ALIASES",
            help="Another name for a model, as gpt-4o-mini=SmolLM2-135M-Instruct; may be given several times. "
            "In the environment: separated by commas.",
        ),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHNET_STORE",
            metavar="MODEL",
            help="A model to hand to nodes that start with --model mesh:NAME: a .gguf file, a folder of them, or a "
            "model package such as 'smollm2'; may be given several times. In the environment: separated by commas.",
        ),
    ] = None,
    cache_dir: Annotated[
        Path, typer.Option(envvar="MESHNET_CACHE_DIR", help="Where hashes of --store's files are kept.")
    ] = CACHE_DIR_DEFAULT,
    database: Annotated[
        str,
        typer.Option(
            envvar="MESHNET_DATABASE",
            metavar="URL",
            help="Where the call wall's calls are kept over restarts, as sqlite:///FILE; 'none': nowhere.",
        ),
    ] = DATABASE_DEFAULT,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHNET_API_KEYS",
            metavar="KEY",
            help="A key that clients send as 'Authorization: Bearer KEY'; may be given several times.",
        ),
    ] = None,
    api_key_file: Annotated[
        list[Path] | None,
        typer.Option(envvar="MESHNET_API_KEY_FILE", help="A file with clients' keys, one a line."),
    ] = None,
    admin_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHNET_ADMIN_KEY",
            metavar="KEY",
            help="The owner's key: opens the dashboard and everything else. Several times, if need be.",
        ),
    ] = None,
    admin_key_file: Annotated[
        list[Path] | None, typer.Option(envvar="MESHNET_ADMIN_KEY_FILE", help="A file with the owner's keys.")
    ] = None,
    join_token: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHNET_JOIN_TOKEN", metavar="TOKEN", help="What a node must know to join; it is never sent itself."
        ),
    ] = None,
    join_token_file: Annotated[
        list[Path] | None, typer.Option(envvar="MESHNET_JOIN_TOKEN_FILE", help="A file with join tokens.")
    ] = None,
    allow_wallet: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHNET_ALLOW_WALLETS",
            metavar="WALLET",
            help="A wallet whose nodes may join, with or without a token; several times, if need be.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHNET_ALLOW_HOSTS",
            metavar="NAME",
            help="A name by which browsers may call the tracker, such as a reverse proxy's; several times, if need be.",
        ),
    ] = None,
    is_open: Annotated[
        bool,
        typer.Option(
            "--open",
            envvar="MESHNET_OPEN",
            help="Go without keys although others can reach this tracker. Trust them all.",
        ),
    ] = False,
    show_texts: Annotated[
        bool,
        typer.Option(
            "--show-texts",
            envvar="MESHNET_SHOW_TEXTS",
            help="Show prompts and answers of the latest calls on the dashboard. Kept in memory only.",
        ),
    ] = False,
    key_file: Annotated[
        Path,
        typer.Option(envvar="MESHNET_TRACKER_KEY_FILE", help="Ed25519 key that signs tickets; made on first start."),
    ] = KEY_FILE_DEFAULT,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    log_json: LogJson = False,
) -> None:
    """Serve the OpenAI-compatible endpoint and route chats over the nodes that join.

    Completions shorter than MESHNET_ROUTE_MIN_SAMPLE_TOKENS (default 8) are not taken as measurements.

    On loopback everything is open. With --host it asks for keys, and draws some that you can use.
    """
    configure_logs(as_json=log_json)
    run_tracker(
        TrackerSettings(
            host=host,
            port=port,
            heartbeat_period_s=heartbeat_period,
            store=stored_models(store or [], cache_dir),
            database=None if database == NO_DATABASE else database,
            route_explore_share=route_explore_share,
            route_weight_alpha=route_weight_alpha,
            route_stats_half_life_s=route_stats_half_life,
            route_min_sample_tokens=min_sample_tokens(),
            route_policy=route_policy,
            route_candidates_max=route_candidates_max,
            token_timeout_s=token_timeout,
            chat_timeout_s=chat_timeout,
            drain_timeout_s=drain_timeout,
            model_aliases=parse_aliases(model_alias or []),
            api_keys=gather_keys(api_key, api_key_file, flag="--api-key"),
            admin_keys=gather_keys(admin_key, admin_key_file, flag="--admin-key"),
            join_tokens=gather_keys(join_token, join_token_file, flag="--join-token"),
            allowed_wallets=frozenset(WalletId(wallet.lower()) for wallet in split_list(allow_wallet)),
            allowed_hosts=frozenset(host.lower() for host in split_list(allow_host)),
            is_open=is_open,
            show_texts=show_texts,
            server_tls=server_context(tls_cert, tls_key),
            client_tls=client_context(tls_ca),
        ),
        key=load_or_create_key(key_file, flag="--key-file"),
    )


def stored_models(texts: Sequence[str], cache_dir: Path) -> list[StoredModel]:
    """Raises NodeError, naming the file, if one is no model."""
    wanted = [text.strip() for text in ",".join(texts).split(",") if text.strip()]
    return [
        StoredModel(model.card.name, model.card.model_key, model.path, model.shared, model.manifest)
        for text in wanted
        for model in whole_models(text, cache_dir)
    ]


def parse_aliases(texts: Sequence[str]) -> dict[str, str]:
    """``alias=model`` texts, each maybe several of them separated by commas."""
    aliases: dict[str, str] = {}
    for pair in ",".join(texts).split(","):
        alias, equals, name = pair.strip().partition("=")
        if equals and alias.strip() and name.strip():
            aliases[alias.strip()] = name.strip()
        elif pair.strip():
            raise CommandError(f"--model-alias {pair.strip()!r}: write it as ALIAS=MODEL")
    return aliases


def min_sample_tokens() -> int:
    """This knob has a variable and no flag: it is hygiene, not something to tune by hand."""
    text = os.environ.get(MIN_SAMPLE_TOKENS_VARIABLE, str(MIN_SAMPLE_TOKENS_DEFAULT))
    try:
        return int(text)
    except ValueError as error:
        raise CommandError(f"{MIN_SAMPLE_TOKENS_VARIABLE}={text!r}: write a whole number of tokens") from error
