"""`toolcrib cron create SCHEDULE PROMPT`."""

from __future__ import annotations

import time
from typing import Any

import click

from toolcrib.cli.cron import job_options, moments_text, opened_jobs, person, wish_of
from toolcrib.cli.cron_checks import check_skills, check_toolsets, warn_of_refused_commands
from toolcrib.cli.output import note, print_pairs
from toolcrib.config.load import load_settings
from toolcrib.cron.drafts import new_job


@click.command(name="create")
@click.argument("schedule")
@click.argument("prompt", required=False)
@job_options
def command(schedule: str, prompt: str | None, **options: Any) -> None:
    """Let the agent do something at set times.

    SCHEDULE is a cron expression, or words; PROMPT says what to do in each run. Nobody can be asked during a run, so
    what is dangerous is denied, unless `approvals.policies.cron` says otherwise. `toolcrib cron serve` runs the jobs.

    \b
    Examples:
      toolcrib cron create '0 9 * * 1-5' 'Sum up the new mail in ~/Mail' --name mail
      toolcrib cron create 'every 2h' 'Look whether the tests pass' --toolsets terminal,file
      toolcrib cron create 'every monday at 9:00' 'Plan the week' --tz Europe/Berlin
      toolcrib cron create 'in 30m' 'Check that the upload is done'
      toolcrib cron create '2026-12-24 18:00' 'Wish me a merry Christmas'
      toolcrib cron create '@hourly' --script 'df -h /' --no-agent --name disk
    """
    settings, now = load_settings(), time.time()
    wish = wish_of(schedule, prompt, options)
    check_toolsets(wish.toolsets)
    with opened_jobs(settings) as store:
        wanted = new_job(wish, person(), settings, store, now)
        check_skills(wanted)
        job = store.add(wanted)
        has_scheduler = bool(store.scheduler())
    moments, meaning = moments_text(job, now)
    print_pairs([("job", f"{job.name} (id {job.id})"), ("runs", meaning), ("next", moments), ("in", job.workdir)])
    warn_of_refused_commands(job, settings)
    if not has_scheduler:
        note(f"It runs while `toolcrib cron serve` is running; `toolcrib cron run {job.id}` runs it now.")
