"""Measures the agent: its own work in a turn, the way to the first request, and many agents at once.

Prints a table and exits 1 when a figure is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run import Row, print_table
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.config.environment import environment
from toolcrib.core.messages import Message
from toolcrib.core.models import Delta, ModelRequest, ModelResponse
from toolcrib.providers.embedded.catalog import find_model
from toolcrib.providers.embedded.provider import EmbeddedProvider
from toolcrib.providers.embedded.weights import open_store
from toolcrib.providers.openai_request import OpenAIOptions, OpenAIRequests
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing.model_server import ReceivedRequest, ScriptedModelServer

TOOLS = 60
HISTORY = 200
TURNS = 100
REPEATS = 5
AGENTS = 50
AGENT_TURNS = 20
MODEL_SECONDS = 0.05
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--base", type=Path, help="another checkout; measure a terminal call of the agent in both, in turns"
    )
    options = parser.parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        rows = [turn_row(Path(folder)), first_request_row(Path(folder)), crowd_row(Path(folder)), first_word_row()]
    rows.append(terminal_row(options.base))
    print_table(rows)
    print(f"\nOther work on the machine makes figures worse; the load was {load} of {os.cpu_count()} at the start.")
    return 1 if any(row.met is False for row in rows) else 0


def make_registry() -> ToolRegistry:
    registry = ToolRegistry()
    properties = {
        "text": {"type": "string", "description": "What to work on"},
        "count": {"type": "integer", "minimum": 0},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    }
    for number in range(TOOLS):
        registry.register(
            name=f"tool_{number}",
            toolset="bench",
            schema={
                "description": f"Tool {number} looks at a text and says something about it",
                "parameters": {"type": "object", "properties": properties, "required": ["text"]},
            },
            handler=lambda args, **_: json.dumps({"seen": args["text"]}),
        )
    return registry


def fill(agent: Agent) -> None:
    """A long conversation, without asking a model for it."""
    for number in range(HISTORY // 2):
        question = Message(role="user", content=f"Question {number}: " + "what about this? " * 10)
        answer = Message(role="assistant", content=f"Answer {number}: " + "it is like that. " * 20)
        for message in (question, answer):
            agent.host.store.append(agent.session_id, message)


class WithWire(ScriptedProvider):
    """A scripted model that also puts each request into the form that goes over the wire, as a real one must."""

    def __init__(self) -> None:
        super().__init__(otherwise=self._step)
        self._turn = 0
        self._wire = OpenAIRequests("bench", OpenAIOptions())

    def _step(self, request: ModelRequest) -> ModelResponse | str:
        self.requests.clear()
        self._wire.body(request, sees_images=True)
        self._turn += 1
        return "done" if self._turn % TURNS == 0 else calls(f"tool_{self._turn % TOOLS}", {"text": f"t{self._turn}"})


def turn_row(folder: Path) -> Row:
    runtime = Runtime(home=folder / "turn", registry=make_registry())
    provider = WithWire()
    host = AgentHost(runtime=runtime, model=provider)
    agent = Agent(host=host, model=provider, toolsets=["bench"], max_turns=TURNS * 2, max_calls=TURNS * 2)
    fill(agent)
    found = []
    for _ in range(REPEATS):
        started = time.process_time()
        agent.run_sync("Look at all of it")
        found.append((time.process_time() - started) / TURNS * 1000)
    best = min(found)
    runtime.close()
    what = f"own CPU of a turn: {TOOLS} tools, {HISTORY} messages and more"
    return Row(what, f"{best:.2f} ms", "", "", "≤ 3 ms", best <= 3)


def terminal_row(base: Path | None) -> Row:
    """A terminal call with an approved command; beside another checkout, where one is given."""
    ours, theirs = [], []
    for _ in range(REPEATS):
        ours.append(terminal_call_ms(Path(__file__).parent.parent))
        if base is not None:
            theirs.append(terminal_call_ms(base))
    mine, what = min(ours), "own CPU of a terminal call with an approved command (the other checkout beside it)"
    if not theirs:
        return Row(what, f"{mine:.2f} ms", "", "", "", None)
    other = min(theirs)
    return Row(what, f"{mine:.2f} ms", f"{other:.2f} ms", f"{mine / other:.2f}", "≤ 0.7", mine / other <= 0.7)


def terminal_call_ms(checkout: Path) -> float:
    probe = Path(__file__).parent / "probes" / "agent_terminal.py"
    variables = {**environment(), "PYTHONPATH": str(checkout.resolve() / "src")}
    # Another version may need other packages; without its parser, for instance, it would measure less work.
    own = checkout.resolve() / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    ran = subprocess.run([python, str(probe)], env=variables, capture_output=True, text=True, check=True)
    return float(ran.stdout)


def cpu_seconds(pid: int) -> float:
    """User and system time of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def first_request_row(folder: Path) -> Row:
    """`toolcrib chat -q` until its request arrives, beside the import of the SDK it needs."""
    ours, sdk = [], []
    for _ in range(REPEATS):
        ours.append(until_request(folder / "chat"))
        sdk.append(until_client())
    mine, import_alone = min(ours), min(sdk)
    return Row(
        "toolcrib chat -q until the request leaves, CPU (the SDK alone beside it)",
        f"{mine:.2f} s",
        f"{import_alone:.2f} s",
        f"+{mine - import_alone:.2f} s",
        "≤ +0.2 s",
        mine - import_alone <= 0.2,
    )


def until_request(home: Path) -> float:
    home.mkdir(exist_ok=True)
    spent: list[float] = []
    started: list[subprocess.Popen[bytes]] = []

    def answer(_: ReceivedRequest) -> str:
        spent.append(cpu_seconds(started[0].pid))
        return "Hello."

    with ScriptedModelServer([answer]) as server:
        provider = f"  bench: {{base_url: {server.base_url}, model: test}}"
        (home / "config.yaml").write_text(f"model: {{provider: bench}}\nproviders:\n{provider}\n")
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TOOLCRIB_HOME": str(home)}
        command = [sys.executable, "-m", "toolcrib", "chat", "-q", "Hello", "--quiet"]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        started[0].wait(60)
    return spent[0]


def until_client() -> float:
    """What the SDK costs by itself: its import, and a client."""
    client = "openai.AsyncOpenAI(base_url='http://127.0.0.1:9/v1', api_key='x')"
    code = f"import openai; {client}; import os; os.write(1, b'x'); os.read(0, 1)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    spent = cpu_seconds(process.pid)
    process.communicate(b"x", timeout=60)
    return spent


def crowd_row(folder: Path) -> Row:
    """Many agents in one process, each waiting for its model most of the time."""
    runtime = Runtime(home=folder / "crowd", registry=make_registry())
    steps = [*(calls(f"tool_{number % TOOLS}", {"text": str(number)}) for number in range(AGENT_TURNS - 1)), "done"]
    models = [ScriptedProvider(steps, delay_seconds=MODEL_SECONDS) for _ in range(AGENTS)]
    host = AgentHost(runtime=runtime, model=models[0])
    agents = [Agent(host=host, model=model, toolsets=["bench"]) for model in models]

    async def run_all() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(agent.run("Work") for agent in agents))
        return time.perf_counter() - started

    taken = asyncio.run(run_all())
    ideal = AGENT_TURNS * MODEL_SECONDS
    runtime.close()
    what = f"{AGENTS} agents at once, a model at {MODEL_SECONDS * 1000:.0f} ms: share of ideal throughput"
    return Row(what, f"{taken:.2f} s", f"{ideal:.2f} s", f"{ideal / taken:.2f}", "≥ 0.8", ideal / taken >= 0.8)


def first_word_row() -> Row:
    """The small model of this machine with the longest prompt that it is ever given."""
    what = "embedded model: first word of an answer to 1,500 tokens"
    if open_store(environment()).path(find_model("")) is None:
        return Row(what, "not run", "", "", "≤ 20 s (needs its weights: `make chat`)", None)
    taken = asyncio.run(until_first_word())
    return Row(what, f"{taken:.1f} s", "", "", "≤ 20 s", taken <= 20)


async def until_first_word() -> float:
    provider = EmbeddedProvider()
    heard: list[float] = []

    def listen(_: Delta) -> None:
        heard.append(time.perf_counter())

    def asked(text: str) -> ModelRequest:
        return ModelRequest(model="", messages=[Message(role="user", content=text)], max_output_tokens=2)

    try:
        await provider.complete(asked("Hello"), listen)
        text = " ".join(f"Line {number} of the report says that all is well." for number in range(107))
        heard.clear()
        started = time.perf_counter()
        await provider.complete(asked(f"{text} What does it say?"), listen)
        return heard[0] - started
    finally:
        await provider.close()


if __name__ == "__main__":
    sys.exit(main())
