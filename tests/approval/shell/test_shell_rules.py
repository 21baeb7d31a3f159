"""Every rule is proved by a dangerous and by a harmless command, every class by its plain example."""

from __future__ import annotations

import re

import pytest

from toolcrib.approval.analyse import DANGEROUS_PATTERNS, analyse, detect_dangerous_command
from toolcrib.approval.shell.rules import ALL_RULES, DANGERS
from toolcrib.approval.shell.rules.base import DangerClass, Rule

CLASSES = [danger for danger in DANGERS.values() if danger.example]


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: f"{rule.key}: {rule.yes}")
def test_rule_finds_its_dangerous_example(rule: Rule) -> None:
    """A rule reports its own example, for its own reason and with its own severity."""
    findings = analyse(rule.yes).findings

    assert (rule.key, rule.reason, rule.severity) in [(each.rule, each.reason, each.severity) for each in findings]


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: f"{rule.key}: {rule.no}")
def test_rule_leaves_its_harmless_neighbour_alone(rule: Rule) -> None:
    """The harmless command beside a rule is safe by every rule."""
    assert analyse(rule.no).verdict == "safe", analyse(rule.no).findings


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
