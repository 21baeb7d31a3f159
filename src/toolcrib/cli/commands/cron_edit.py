"""`toolcrib cron create` and `update`: write a job, and warn about calls that would be denied when it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from toolcrib.approval.build import build_policy
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.grants import Grant
from toolcrib.approval.options import GateOptions
from toolcrib.approval.policy import Action, decide
from toolcrib.cli.commands.cron import job_argument, job_author, job_draft, job_options, next_runs_text, open_jobs
from toolcrib.cli.output import note, one_line, print_pairs
from toolcrib.cli.runtime import open_runtime
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.types import Effect
from toolcrib.cron.delivery import stored_destination
from toolcrib.cron.drafts import JobDraft, new_job, update_job
from toolcrib.cron.jobs import Job
from toolcrib.environments.specs import ON_THIS_MACHINE


def require_toolsets(names: Sequence[str] | None) -> None:
    """Raises for a toolset that does not exist."""
    if names:
        open_runtime().toolsets.require(names)


def require_skills(job: Job) -> None:
    """Raises for a skill that a session in the job's folder would not find."""
    if job.skills:
        catalog = open_runtime().context().services.skills.catalog(job.workdir)
        for name in job.skills:
            catalog.get(name, advice="`toolcrib skills list` lists them all")


def warn_of_refused_commands(job: Job, settings: Settings) -> None:
    """Warn about commands that would be denied during a run; only possible for backends on this machine."""
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
                f"Its command would be denied: {one_line(why)}. "
                "See `toolcrib approvals suggest` and `approvals.rules` for how to allow it."
            )


@click.command(name="create")
@click.argument("schedule")
@click.argument("prompt", required=False)
@job_options
def create_job(schedule: str, prompt: str | None, **options: Any) -> None:
    """Schedule a job for the agent.

    SCHEDULE is a cron expression or words; PROMPT is what the agent does in each run. Nobody can approve anything
    during a run, so dangerous calls are denied unless `approvals.policies.cron` allows them. `toolcrib cron serve` runs
    the jobs.

    \b
    Examples:
      toolcrib cron create '0 9 * * 1-5' 'Sum up the new mail in ~/Mail' --name mail
      toolcrib cron create 'every 2h' 'Check whether the tests pass' --toolsets terminal,file
      toolcrib cron create 'every monday at 9:00' 'Plan the week' --tz Europe/Berlin
      toolcrib cron create 'in 30m' 'Check that the upload is done'
      toolcrib cron create '2026-12-24 18:00' 'Wish me a merry Christmas'
      toolcrib cron create '@hourly' --script 'df -h /' --no-agent --name disk
    """
    settings, now = load_settings(), time.time()
    draft = job_draft(schedule, prompt, options)
    require_toolsets(draft.toolsets)
    with open_jobs(settings) as store:
        wanted = new_job(draft, job_author(), settings, store, now)
        require_skills(wanted)
        job = store.add(wanted)
        has_scheduler = bool(store.scheduler())
    moments, meaning = next_runs_text(job, now)
    print_pairs([("job", f"{job.name} (id {job.id})"), ("runs", meaning), ("next", moments), ("in", job.workdir)])
    warn_of_refused_commands(job, settings)
    if not has_scheduler:
        note(f"No scheduler is running: start `toolcrib cron serve`, or run it now with `toolcrib cron run {job.id}`.")


@click.command(name="update")
@job_argument
@click.option("--schedule", metavar="SCHEDULE", help="The new schedule.")
@click.option("--prompt", metavar="PROMPT", help="The new prompt.")
@job_options
def update(wanted: str, schedule: str | None, prompt: str | None, **options: Any) -> None:
    """Change a job.

    Options that you leave out keep their values; an empty name after --skill or --context-from clears the list.

    \b
    Examples:
      toolcrib cron update mail --schedule '0 8 * * 1-5'
      toolcrib cron update mail --deliver file:~/mail.txt
    """
    settings, now = load_settings(), time.time()
    draft = job_draft(schedule, prompt, options)
    if draft == JobDraft():
        raise UsageError("nothing to change; name an option, as in `toolcrib cron update JOB --schedule 'every 2h'`")
    require_toolsets(draft.toolsets)
    with open_jobs(settings) as store:
        before = store.find(wanted)
        changed = update_job(before, draft, job_author(), settings, store, now)
        if draft.skills:
            require_skills(changed)
        job = store.replace(changed, before)
    moments, meaning = next_runs_text(job, now)
    print_pairs([("job", f"{job.name} (id {job.id}), {job.state}"), ("runs", meaning), ("next", moments or ["-"])])
    warn_of_refused_commands(job, settings)
