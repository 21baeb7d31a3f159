"""`toolcrib model test [MODEL]`."""

from __future__ import annotations

import click

from toolcrib.cli.model_trial import TOOL, Trial, try_answer_and_tool
from toolcrib.cli.models import complete_providers, lack_of
from toolcrib.cli.output import error_line, note, one_line, print_json, print_pairs
from toolcrib.config.load import load_settings
from toolcrib.core.models import ModelError
from toolcrib.providers.choose import explain_choice


@click.command(name="test")
@click.argument("model", required=False, default="")
@click.option("--provider", default="", metavar="NAME", shell_complete=complete_providers, help="Where the model is.")
@click.option("--base-url", default="", metavar="URL", help="The address of its server, if not the provider's own.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(model: str, provider: str, base_url: str, as_json: bool) -> int:
    """Send one small request to a model and say what came back.

    A second request needs a tool, and shows whether the model can call one. Without MODEL it is the one that answers
    now. Each request is sent once, without second tries and without fallbacks. Exit code 1 when it does not answer,
    or calls no tool.

    The object of --json has the keys ok, error (empty when nothing went wrong), why, answer and tool_call; these two
    have the keys provider, model, seconds, first_token_seconds, input_tokens, output_tokens and cost_usd, tool_call
    has also works.

    \b
    Examples:
      toolcrib model test
      toolcrib model test anthropic/claude-sonnet-5-5
      toolcrib model test qwen3 --base-url http://127.0.0.1:8000/v1
    """
    settings = load_settings()
    choice = explain_choice(settings, model=model, provider=provider, base_url=base_url)
    lack = lack_of(settings, choice)
    try:
        if lack is not None:
            raise ModelError(str(lack))
        answer, tool_answer = try_answer_and_tool(settings, choice, note)
    except ModelError as error:
        return _failed(str(error), choice.why, as_json)
    works = tool_answer.calls_the_tool
    problem = "" if works else _no_call(tool_answer)
    if as_json:
        print_json(
            {
                "ok": works,
                "error": problem,
                "why": choice.why,
                "answer": answer.as_json(),
                "tool_call": {**tool_answer.as_json(), "works": works},
            }
        )
        return 0 if works else 1
    print_pairs(
        [
            ("model", answer.model),
            ("provider", answer.provider),
            ("why", choice.why),
            *_figures(answer),
            ("tool calls", f"work ({tool_answer.seconds:.1f} s)" if works else "do not work"),
        ]
    )
    if problem:
        error_line(problem)
    return 0 if works else 1


def _figures(answer: Trial) -> list[tuple[str, str]]:
    first = "-" if answer.first_token_seconds is None else f"{answer.first_token_seconds:.2f} s"
    figures = [
        ("first token", first),
        ("whole answer", f"{answer.seconds:.2f} s{', loading included' if answer.was_loaded else ''}"),
        ("tokens", f"{answer.usage.input_tokens:,} in, {answer.usage.output_tokens:,} out"),
    ]
    return figures if answer.usage.cost_usd is None else [*figures, ("cost", f"${answer.usage.cost_usd:.6f}")]


def _no_call(answer: Trial) -> str:
    said = one_line(answer.text)[:80]
    instead = f"said {said!r} instead" if said else "said nothing instead"
    return (
        f"{answer.model} of {answer.provider} was asked to call {TOOL['function']['name']!r} and {instead}; "
        "an agent needs a model that calls tools: choose one of `toolcrib model list`"
    )


def _failed(sentence: str, why: str, as_json: bool) -> int:
    if as_json:
        print_json({"ok": False, "error": sentence, "why": why, "answer": None, "tool_call": None})
    else:
        error_line(sentence)
    return 1
