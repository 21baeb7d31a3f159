"""Shared by the tests of policy, grants and gate: a policy over an invented machine, and a short way to decide."""

from msgspec.structs import replace

from toolcrib.approval.command_reader import read_command
from toolcrib.approval.grants import Grant
from toolcrib.approval.paths import SensitivePaths
from toolcrib.approval.policy import Action, Decision, Policy, decide
from toolcrib.approval.user_rules import parse_rule
from toolcrib.core.types import Effect

WORKSPACE = "/work-area/project"
HOME = "/home/anna"
POLICY = Policy(
    sensitive=SensitivePaths(f"{HOME}/.toolcrib"), workspace=WORKSPACE, home=HOME, answer="ask", attended=True
)


def with_rules(*rules: str, **changes) -> Policy:
    return replace(POLICY, rules=tuple(parse_rule(rule) for rule in rules), **changes)


def run(command: str, *grants: str, policy: Policy = POLICY, cwd: str = "") -> Decision:
    """The decision about a tool that runs this command."""
    action = Action(tool="terminal", effects=(Effect("exec", command),), cwd=cwd)
    return decide(policy, action, [Grant(text) for text in grants], read_command)


def do(*effects: Effect, policy: Policy = POLICY, tool: str = "some_tool", grants: tuple[str, ...] = ()) -> Decision:
    """The decision about a tool with these effects."""
    action = Action(tool=tool, effects=effects)
    return decide(policy, action, [Grant(text) for text in grants], read_command)
