"""What a person should know about a job before it runs: unknown toolsets and skills, and commands that are refused."""

from __future__ import annotations

from collections.abc import Sequence

from toolcrib.approval.build import build_policy
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.entries import Grant
from toolcrib.approval.options import GateOptions
from toolcrib.approval.policy import Action, decide
from toolcrib.cli.output import note, one_line
from toolcrib.cli.skill_shelf import require_skill
from toolcrib.cli.state import open_runtime
from toolcrib.config.settings import Settings
from toolcrib.core.types import Effect
from toolcrib.cron.delivery import stored_destination
from toolcrib.cron.jobs import Job
from toolcrib.environments.specs import ON_THIS_MACHINE


def check_toolsets(names: Sequence[str] | None) -> None:
    """Raises for a toolset that nothing answers to."""
    if names:
        open_runtime().toolsets.require(names)


def check_skills(job: Job) -> None:
    """Raises for a skill that is not there for a session in the job's folder."""
    if job.skills:
        shelf = open_runtime().context().services.get("skills").catalog(job.workdir)
        for name in job.skills:
            require_skill(shelf, name)


def warn_of_refused_commands(job: Job, settings: Settings) -> None:
    """Say now what would be denied when nobody watches; only of this machine is that known beforehand."""
    if settings.terminal.backend not in ON_THIS_MACHINE:
        return
    destination = stored_destination(job.deliver)
    commands = [job.script, destination.target if destination.kind == "command" else ""]
    policy = build_policy(GateOptions(settings=settings, workspace=job.workdir, entry_point="cron", yolo=settings.yolo))
    grants = [Grant(text) for text in settings.command_allowlist]
    for command in filter(None, commands):
        action = Action(tool="terminal", effects=(Effect("exec", command),), cwd=job.workdir)
        decision = decide(policy, action, grants, read_command)
        if decision.outcome != "allow":
            why = "; ".join(decision.reasons)
            note(
                f"Its command would be denied: {one_line(why)}. `toolcrib approvals suggest` and `approvals.rules` say "
                "how to allow it."
            )
