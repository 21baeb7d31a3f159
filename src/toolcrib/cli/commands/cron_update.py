"""`toolcrib cron update JOB`."""

from __future__ import annotations

import time
from typing import Any

import click

from toolcrib.cli.cron import job_argument, job_options, moments_text, opened_jobs, person, wish_of
from toolcrib.cli.cron_checks import check_skills, check_toolsets, warn_of_refused_commands
from toolcrib.cli.output import print_pairs
from toolcrib.config.load import load_settings
from toolcrib.core.errors import UsageError
from toolcrib.cron.drafts import JobDraft, update_job


@click.command(name="update")
@job_argument
@click.option("--schedule", metavar="SCHEDULE", help="When it runs.")
@click.option("--prompt", metavar="PROMPT", help="What to do in each run.")
@job_options
def command(wanted: str, schedule: str | None, prompt: str | None, **options: Any) -> None:
    """Change a job.

    What is not named stays as it is; an empty name after --skill or --context-from takes the list away.

    \b
    Examples:
      toolcrib cron update mail --schedule '0 8 * * 1-5'
      toolcrib cron update mail --deliver file:~/mail.txt
    """
    settings, now = load_settings(), time.time()
    wish = wish_of(schedule, prompt, options)
    if wish == JobDraft():
        raise UsageError("say what to change, as in `toolcrib cron update JOB --schedule 'every 2h'`")
    check_toolsets(wish.toolsets)
    with opened_jobs(settings) as store:
        before = store.find(wanted)
        changed = update_job(before, wish, person(), settings, store, now)
        if wish.skills:
            check_skills(changed)
        job = store.replace(changed, before)
    moments, meaning = moments_text(job, now)
    print_pairs([("job", f"{job.name} (id {job.id}), {job.state}"), ("runs", meaning), ("next", moments or ["-"])])
    warn_of_refused_commands(job, settings)
