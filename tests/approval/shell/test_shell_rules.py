"""Every rule is proved by a dangerous and by a harmless command, every class by its plain example."""

from __future__ import annotations

import re

import pytest

from toolcrib.approval.analyse import DANGEROUS_PATTERNS, analyse, detect_dangerous_command
from toolcrib.approval.shell.rules import ALL_RULES, DANGERS
from toolcrib.approval.shell.rules.base import DangerClass, Rule

KEYS = sorted({rule.key for rule in ALL_RULES})
CLASSES = [danger for danger in DANGERS.values() if danger.example]


def rules_of(key: str) -> list[Rule]:
    return [rule for rule in ALL_RULES if rule.key == key]


@pytest.mark.parametrize("key", KEYS)
def test_rule_finds_its_dangerous_example(key: str) -> None:
    """A rule reports its own example, for its own reason and with its own severity."""
    for rule in rules_of(key):
        findings = analyse(rule.yes).findings

        found = [(each.rule, each.reason, each.severity) for each in findings]
        assert (rule.key, rule.reason, rule.severity) in found, rule.yes


@pytest.mark.parametrize("key", KEYS)
def test_rule_leaves_its_harmless_neighbour_alone(key: str) -> None:
    """The harmless command beside a rule is safe by every rule."""
    for rule in rules_of(key):
        assert analyse(rule.no).verdict == "safe", (rule.no, analyse(rule.no).findings)


@pytest.mark.parametrize("danger", CLASSES, ids=lambda danger: danger.key)
def test_class_pattern_matches_its_plain_example(danger: DangerClass) -> None:
    """The documented regex of a class matches the example, which the analyser reports under that class."""
    assert re.search(danger.pattern, danger.example)
    assert danger.key in [finding.rule for finding in analyse(danger.example).findings]
    assert (danger.pattern, danger.description) in DANGEROUS_PATTERNS


@pytest.mark.parametrize("danger", CLASSES, ids=lambda danger: danger.key)
def test_detected_key_is_the_description(danger: DangerClass) -> None:
    """`detect_dangerous_command` gives the description of a class as its key."""
    found, key, description = detect_dangerous_command(danger.example)

    assert found
    assert key == description
    assert key in [each.description for each in analyse(danger.example).findings]
