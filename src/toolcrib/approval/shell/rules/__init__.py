"""The rules about dangerous commands: one module per topic, collected here by program."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from toolcrib.approval.shell.model import name_set
from toolcrib.approval.shell.rules import (
    cloud,
    containers,
    credentials,
    databases,
    delete,
    deployments,
    disk,
    fetched_programs,
    kubernetes,
    network_config,
    other_tools,
    own_program,
    packages,
    permissions,
    processes,
    services,
    system_config,
    version_control,
)
from toolcrib.approval.shell.rules.base import DangerClass, Rule

MODULES: tuple[ModuleType, ...] = (
    delete,
    disk,
    processes,
    permissions,
    system_config,
    network_config,
    services,
    own_program,
    version_control,
    databases,
    containers,
    kubernetes,
    cloud,
    packages,
    deployments,
    fetched_programs,
    credentials,
    other_tools,
)

DANGERS: dict[str, DangerClass] = {danger.key: danger for module in MODULES for danger in module.DANGERS}
ALL_RULES: tuple[Rule, ...] = tuple(
    rule if rule.key else replace(rule, key=module.DANGERS[0].key) for module in MODULES for rule in module.RULES
)


def _index() -> dict[str, tuple[Rule, ...]]:
    index: dict[str, list[Rule]] = {}
    for rule in ALL_RULES:
        for program in rule.programs.split():
            index.setdefault(program, []).append(rule)
    return {program: tuple(rules) for program, rules in index.items()}


BY_PROGRAM: dict[str, tuple[Rule, ...]] = _index()
TAKES_SUBCOMMAND = name_set(
    "git docker podman kubectl oc systemctl service helm aws gcloud az gh terraform tofu "
    "terragrunt pulumi apt apt-get dnf yum brew"
)
