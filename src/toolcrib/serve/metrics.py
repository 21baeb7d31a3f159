"""Counters of the server, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from toolcrib.agent.events import RunResult

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of the histogram of requests, in seconds."""

Samples = Iterable[tuple[Mapping[str, str], float]]


class ServerMetrics:
    """Counters of one server; they start at zero with it."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._runs: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._cost_usd = 0.0

    def request_ended(self, method: str, status: int, seconds: float) -> None:
        self._requests[method, status] += 1
        self._seconds += seconds
        for bound in BUCKETS:
            if seconds <= bound:
                self._buckets[bound] += 1

    def run_ended(self, result: RunResult) -> None:
        self._runs[result.outcome] += 1
        self._tokens["input"] += result.usage.input_tokens
        self._tokens["output"] += result.usage.output_tokens
        self._cost_usd += result.usage.cost_usd or 0.0

    def text(self, *, working: int, streams: int, questions: int) -> str:
        """All metrics; the arguments are what happens now."""
        count = sum(self._requests.values())
        requests = [({"method": method, "status": str(status)}, n) for (method, status), n in self._requests.items()]
        buckets: list[tuple[Mapping[str, str], float]] = [
            ({"le": f"{bound:g}"}, self._buckets[bound]) for bound in BUCKETS
        ]
        lines = [
            *_metric("requests_total", "counter", "HTTP requests.", requests),
            *_head("request_seconds", "histogram", "How long requests took, streams included."),
            *_samples("request_seconds_bucket", [*buckets, ({"le": "+Inf"}, count)]),
            *_samples("request_seconds_sum", [({}, self._seconds)]),
            *_samples("request_seconds_count", [({}, count)]),
            *_metric("runs_total", "counter", "Runs that ended.", _labelled("outcome", self._runs)),
            *_metric("runs_working", "gauge", "Runs at work.", [({}, working)]),
            *_metric("streams_open", "gauge", "Open streams.", [({}, streams)]),
            *_metric("questions_open", "gauge", "Approvals and questions that wait.", [({}, questions)]),
            *_metric("tokens_total", "counter", "Tokens of ended runs.", _labelled("kind", self._tokens)),
            *_metric("cost_usd_total", "counter", "Cost of ended runs, in US dollars.", [({}, self._cost_usd)]),
        ]
        return "\n".join([*lines, ""])


def _labelled(name: str, counts: Mapping[str, float]) -> Samples:
    return [({name: value}, count) for value, count in counts.items()]


def _metric(name: str, kind: str, meaning: str, samples: Samples) -> list[str]:
    return [*_head(name, kind, meaning), *_samples(name, samples)]


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP toolcrib_{name} {meaning}", f"# TYPE toolcrib_{name} {kind}"]


def _samples(name: str, samples: Samples) -> list[str]:
    """Label values are ours, so nothing in them needs an escape."""
    lines = []
    for labels, value in samples:
        inside = ",".join(f'{label}="{given}"' for label, given in labels.items())
        lines.append(f"toolcrib_{name}{f'{{{inside}}}' if inside else ''} {value:g}")
    return lines
