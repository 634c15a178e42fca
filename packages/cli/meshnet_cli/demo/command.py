"""The demo's story: two nodes, chats, a third node joins, its route is scouted and wins.

A machine has only one speed, so slowness is pretended, openly: the slow node waits a little per layer.
"""

import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import openai
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.errors import CommandError
from meshnet_cli.tables import routes_table
from meshnet_cli.tracker_api import get_json, served_models

FAST_LAYERS, SLOW_LAYERS, JOINING_LAYERS = "0-16", "0-29", "17-29"
ENTRY_LAYER = 17
SLOW_LAYER_DELAY_MS = 1.5
CHATS_BEFORE_JOIN, CHATS_AFTER_JOIN = 8, 12
CHATS_MAX = 80
"""Scouting is a matter of chance: how long a run may wait for the last arm to be proven."""
SLOWEST_COEFFICIENT_MAX = 0.8
MAX_TOKENS = 40
TERMINATED_EXIT_CODE = 143


@dataclass(frozen=True, slots=True)
class Question:
    """Something the small model answers well, and a word that a sensible answer has."""

    text: str
    expects: str


QUESTIONS = (
    Question("What do bees make? Answer in one sentence.", "honey"),
    Question("Why is the sky blue? Answer in one sentence.", "scattering"),
    Question("Who wrote Romeo and Juliet?", "Shakespeare"),
    Question("What is water made of?", "hydrogen"),
)


def demo(
    once: Annotated[
        bool, typer.Option("--once", envvar="MESHNET_DEMO_ONCE", help="Exit by itself; code 0 only if all went well.")
    ] = False,
    port: Annotated[int, typer.Option(envvar="MESHNET_DEMO_PORT", help="The tracker's port; another if taken.")] = 8090,
    model: Annotated[
        str, typer.Option(envvar="MESHNET_DEMO_MODEL", help="A model of 30 layers: 'smollm2' or a .gguf file.")
    ] = "smollm2",
) -> None:
    """Start a tracker and three nodes here, chat through them, and watch routing learn."""
    console = Console()
    # Processes are stopped on the way out of the mesh's context, so these signals have to take that way too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(TERMINATED_EXIT_CODE))
    folder = Path(tempfile.mkdtemp(prefix="meshnet-demo-"))
    with Mesh(folder, free_port(port), model) as mesh:
        show = Show(console, mesh)
        run_story(show, mesh)
        failures = verdict(show)
        for failure in failures:
            console.print(f"[red]not as it should be:[/red] {escape(failure)}")
        if not once:
            stay(console, mesh)
    if failures:
        raise typer.Exit(1)


def run_story(show: "Show", mesh: Mesh) -> None:
    show.say("starting the tracker and two nodes: fast (layers 0-16) and slow (layers 0-29)")
    mesh.start_tracker()
    mesh.start_node("fast", FAST_LAYERS, layer_delay_ms=0)
    mesh.start_node("slow", SLOW_LAYERS, layer_delay_ms=SLOW_LAYER_DELAY_MS)
    mesh.wait_node("fast", entry_layers=[0])
    mesh.wait_node("slow", entry_layers=[0, ENTRY_LAYER])
    show.say(f"the slow node may now be entered at layer {ENTRY_LAYER}: two routes")
    with show.live():
        show.chat_until_proven(CHATS_BEFORE_JOIN)
        show.say("a third node joins: layers 17-29; the epoch moves, every arm must be measured again")
        mesh.start_node("joining", JOINING_LAYERS, layer_delay_ms=0)
        mesh.wait_node("joining", entry_layers=[ENTRY_LAYER])
        show.chat_until_proven(CHATS_AFTER_JOIN)


def verdict(show: "Show") -> list[str]:
    """What is not as the demo promises; empty if all is well."""
    failures = list(show.bad_answers)
    arms = show.routing()["candidates"]
    if len(arms) < 2:
        failures.append(f"{len(arms)} route(s) where two or more were expected")
    failures += [f"{arm['signature']} is {arm['status']}, not proven" for arm in arms if arm["status"] != "proven"]
    coefficients = [arm["coefficient"] for arm in arms if arm["coefficient"] is not None]
    if coefficients and min(coefficients) >= SLOWEST_COEFFICIENT_MAX:
        failures.append(
            f"the slowest route's coefficient is {min(coefficients):.2f}, not below {SLOWEST_COEFFICIENT_MAX}"
        )
    return failures


def stay(console: Console, mesh: Mesh) -> None:
    """Leave the endpoint running until Ctrl-C or until a process dies."""
    name = served_models(mesh.url)[0]
    console.print(f"\nThe endpoint is running: [bold]{mesh.url}/v1[/bold]   (logs: {mesh.children[0].log.parent})")
    console.print("Try it:", highlight=False)
    body = f'{{"model":"{name}","messages":[{{"role":"user","content":"Tell me a joke."}}],"stream":true}}'
    console.out(f"  curl -N {mesh.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
    console.print(f"  meshnet status --watch --tracker {mesh.url}", highlight=False)
    console.print("Stop it: [bold]Ctrl-C[/bold]")
    try:
        while True:
            time.sleep(1)
            for child in mesh.children:
                child.check()
    except KeyboardInterrupt:
        console.print("stopping")


class Show:
    """Runs the chats and shows progress, the latest answer and the table of learned routes."""

    def __init__(self, console: Console, mesh: Mesh) -> None:
        self._console = console
        self._mesh = mesh
        self._live: Live | None = None
        self._client = openai.OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0)
        self._chats = 0
        self._latest = ""
        self._answers: dict[Question, str] = {}
        self.bad_answers: list[str] = []

    def say(self, line: str) -> None:
        self._console.print(f"[bold cyan]*[/bold cyan] {line}", highlight=False)

    def live(self) -> "Live | nullcontext[None]":
        """A table that redraws itself on a terminal; elsewhere the table is printed at each change of scene."""
        if not self._console.is_terminal:
            return nullcontext()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="visible")
        return self._live

    def routing(self) -> Any:
        models = get_json(self._mesh.url, "/v1/routing")["models"]
        if len(models) != 1:
            raise CommandError(f"the tracker serves {len(models)} models where the demo started one")
        return models[0]

    def chat_until_proven(self, chats_min: int) -> None:
        """At least ``chats_min`` chats, and on until every arm is proven or patience ends."""
        for question in self._questions(chats_min):
            self._chat(question)
            self._draw()
        if self._live is None:
            self._console.print(self._picture())

    def _questions(self, chats_min: int) -> Iterator[Question]:
        for count in range(CHATS_MAX):
            if count >= chats_min and all(arm["status"] == "proven" for arm in self.routing()["candidates"]):
                return
            yield QUESTIONS[count % len(QUESTIONS)]

    def _chat(self, question: Question) -> None:
        self._chats += 1
        self._latest = ""
        try:
            answer = self._client.chat.completions.create(
                model=served_models(self._mesh.url)[0],
                messages=[{"role": "user", "content": question.text}],
                max_tokens=MAX_TOKENS,
                temperature=0,
                stream=True,
            )
            for chunk in answer:
                if chunk.choices:
                    self._latest += chunk.choices[0].delta.content or ""
        except openai.OpenAIError as error:
            self.bad_answers.append(f"chat {self._chats} ended in an error: {error}")
            return
        self._judge(question)

    def _judge(self, question: Question) -> None:
        if question.expects.lower() not in self._latest.lower():
            self.bad_answers.append(f"{question.text!r} was answered {self._latest!r}")
        first = self._answers.setdefault(question, self._latest)
        if self._latest != first:
            self.bad_answers.append(f"{question.text!r} was answered {first!r}, and on another route {self._latest!r}")

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        progress = Text(
            f"{self._chats} chats; latest answer: {self._latest.strip()}", overflow="ellipsis", no_wrap=True
        )
        return Group(progress, routes_table(self.routing()))
