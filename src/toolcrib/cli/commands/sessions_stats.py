"""`toolcrib sessions stats`."""

from __future__ import annotations

import click

from toolcrib.cli.approval_records import local_time
from toolcrib.cli.output import print_json, print_line, print_pairs, print_table
from toolcrib.cli.sessions import NO_SESSIONS, opened_store
from toolcrib.core.types import JsonObject

SHOWN_TOOLS = 15


@click.command(name="stats")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(as_json: bool) -> None:
    """Say how many conversations, messages, calls and tokens there are.

    The object of --json has the keys sessions, messages, calls, input_tokens, output_tokens, cached_tokens, cost_usd,
    first_at, last_at, by_source, by_model, by_tool and size_bytes; null when there is nothing yet.
    """
    with opened_store() as store:
        stats = store.stats() if store.database.exists else None
    if as_json:
        print_json(stats)
        return
    if not stats or not stats["sessions"]:
        print_line(NO_SESSIONS)
        return
    print_pairs(
        [
            ("conversations", f"{stats['sessions']:,}, from {_day(stats['first_at'])} to {_day(stats['last_at'])}"),
            ("messages", f"{stats['messages']:,}"),
            ("tool calls", f"{stats['calls']:,}"),
            ("tokens", _tokens(stats)),
            ("cost", "not known" if stats["cost_usd"] is None else f"{stats['cost_usd']:.4f} US dollars"),
            ("on disk", f"{stats['size_bytes'] / 1_000_000:.1f} MB"),
        ]
    )
    for title, key in (("model", "by_model"), ("source", "by_source")):
        print_line()
        rows = [
            [
                name or "-",
                f"{one['sessions']:,}",
                f"{one['messages']:,}",
                f"{one['input_tokens'] + one['output_tokens']:,}",
            ]
            for name, one in stats[key].items()
        ]
        print_table([title, "conversations", "messages", "tokens"], rows)
    if stats["by_tool"]:
        print_line()
        print_table(
            ["tool", "calls"], [[name, f"{count:,}"] for name, count in list(stats["by_tool"].items())[:SHOWN_TOOLS]]
        )


def _day(seconds: float | None) -> str:
    return local_time(seconds or 0)[:10]


def _tokens(stats: JsonObject) -> str:
    cached = f" ({stats['cached_tokens']:,} of them cached)" if stats["cached_tokens"] else ""
    return f"{stats['input_tokens']:,} in{cached}, {stats['output_tokens']:,} out"
