"""``meshnet chat``: talk to the mesh from a terminal, through the same endpoint as any OpenAI client."""

from collections.abc import Iterator
from typing import Annotated

import openai
import typer
from openai.types.chat import ChatCompletionMessageParam
from rich.console import Console
from rich.text import Text

from meshnet_cli.errors import CommandError
from meshnet_cli.tls import context_of_environment
from meshnet_cli.tracker_api import served_models


def chat(
    prompt: Annotated[str | None, typer.Argument(help="Ask this and exit. Without it: a conversation.")] = None,
    tracker: Annotated[
        str, typer.Option(envvar="MESHNET_TRACKER", help="The tracker's base URL.")
    ] = "http://127.0.0.1:8090",
    model: Annotated[
        str | None, typer.Option(envvar="MESHNET_CHAT_MODEL", help="Model to ask. Default: the first one served.")
    ] = None,
    api_key: Annotated[
        str, typer.Option(envvar="MESHNET_API_KEY", metavar="KEY", help="Key, if the tracker asks for one.")
    ] = "none",
    max_tokens: Annotated[int, typer.Option(min=1, envvar="MESHNET_MAX_TOKENS", help="Longest answer.")] = 512,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, envvar="MESHNET_TEMPERATURE", help="0: always the likeliest token.")
    ] = 0.7,
    show_route: Annotated[
        bool, typer.Option(envvar="MESHNET_SHOW_ROUTE", help="Say which route each answer took.")
    ] = True,
) -> None:
    """Chat with the mesh."""
    console = Console(highlight=False)
    tls = context_of_environment()
    http = openai.DefaultHttpxClient(verify=tls) if tls else None
    client = openai.OpenAI(base_url=f"{tracker.rstrip('/')}/v1", api_key=api_key, http_client=http)
    name = model or first_model(tracker, api_key)
    history: list[ChatCompletionMessageParam] = []
    for question in [prompt] if prompt is not None else ask(console, name):
        history.append({"role": "user", "content": question})
        try:
            answer = say(console, client, name, history, max_tokens, temperature, show_route)
        except CommandError as error:
            if prompt is not None:
                raise
            # A mesh that has no room now may have some at the next question; what was said until here is kept.
            history.pop()
            console.print(Text(f"{error}; ask again", style="red"))
            continue
        history.append({"role": "assistant", "content": answer})


def first_model(tracker: str, api_key: str) -> str:
    models = served_models(tracker, api_key)
    if not models:
        raise CommandError(f"the tracker at {tracker} serves no model yet: start nodes that hold all its layers")
    return models[0]


def ask(console: Console, model: str) -> Iterator[str]:
    """Questions typed until end of input."""
    console.print(Text(f"{model}; end with Ctrl-D", style="dim"))
    while True:
        try:
            question = console.input("[bold]you>[/bold] ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if question:
            yield question


def say(
    console: Console,
    client: openai.OpenAI,
    model: str,
    history: list[ChatCompletionMessageParam],
    max_tokens: int,
    temperature: float,
    show_route: bool,
) -> str:
    """Stream one answer to the terminal and return it. Raises CommandError with the endpoint's own words."""
    parts: list[str] = []
    try:
        answer = client.chat.completions.with_raw_response.create(
            model=model, messages=history, max_tokens=max_tokens, temperature=temperature, stream=True
        )
        for chunk in answer.parse():
            if chunk.choices and (text := chunk.choices[0].delta.content):
                parts.append(text)
                console.out(text, end="", highlight=False)
    except openai.APIConnectionError as error:
        raise CommandError(f"cannot reach {client.base_url}; is the tracker running?") from error
    except openai.APIError as error:
        body = error.body if isinstance(error.body, dict) else {}
        raise CommandError(str(body.get("message") or error.message)) from error
    console.print()
    if show_route:
        console.print(Text(answer.headers.get("x-meshnet-route", ""), style="dim"), soft_wrap=True)
    return "".join(parts)
