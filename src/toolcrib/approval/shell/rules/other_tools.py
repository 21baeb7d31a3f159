"""Tools without rules of their own: judges by their arguments what they destroy or publish."""

from __future__ import annotations

import re
from itertools import pairwise

from toolcrib.approval.shell.model import name_set
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand

DANGERS = (
    DangerClass(
        "tool_delete",
        "deletion through a tool",
        "this tool",
        r"^\s*[\w.-]+(?:\s+[\w:-]+){0,3}\s+(?:delete|destroy|purge|terminate)\b",
        "sometool projects delete p-1",
    ),
)

ANY_UNLISTED = "*"
"""Matches every program that has neither rules nor a handler."""
DESTROYS = re.compile(
    r"(?:[a-z]\w*[-.:])*(?:[a-z]\w*_)?(?:delete|destroy|purge|terminate|obliterate|undeploy|deleteall|factory-reset)(?:-[a-z-]{1,40})?"
)
NOUN = re.compile(r"[a-z][a-z0-9:_-]{0,40}")
LOOKS_ONLY = frozenset({"--dry-run", "--dryrun", "-n", "--help", "-h", "--what-if", "--plan", "--list"})
TEXT_PROGRAMS = name_set(
    "echo print say espeak figlet toilet banner cowsay notify-send logger wall write expr test [ [[ grep egrep fgrep "
    "zgrep rg ag ack look dict man info apropos whatis tldr cheat which type whereis locate ls dir cd mkdir rmdir "
    "touch cat bat less more head tail wc stat file tree du diff cmp sort uniq cut tr basename dirname realpath "
    "readlink open xdg-open code subl nano emacs pytest jest vitest mocha rspec phpunit ctest ava tap"
)
"""Programs whose arguments are text, files or test names."""


def destroys_by_its_words(call: CommandCall) -> bool:
    """`tool noun delete x`: a destructive verb after nothing but nouns."""
    if call.program in TEXT_PROGRAMS or any(word.text in LOOKS_ONLY for word in call.words):
        return False
    for word in call.words[:4]:
        if word.text.startswith("--") and "=" in word.text:
            continue
        if DESTROYS.fullmatch(word.text[:200]):
            return True
        if not NOUN.fullmatch(word.text):
            return False
    return False


def runs_module(*names: str) -> re.Pattern[str]:
    return re.compile(r"(?:[\w.]+\.)?(?:" + "|".join(names) + r")$")


POWER_MODULE = runs_module("reboot", "shutdown", "win_reboot", "win_shutdown")


def switches_hosts_off(call: CommandCall) -> bool:
    return any(POWER_MODULE.match(value.text) for value in call.arguments.values("-m", "--module-name"))


def makes_key(call: CommandCall) -> bool:
    words = [each.text for each in call.arguments.operands]
    return any(pair in (("keys", "create"), ("credential", "reset")) for pair in pairwise(words))


RULES = (
    Rule(
        ANY_UNLISTED,
        reason="deletes something, judging by its arguments",
        where=destroys_by_its_words,
        yes="sometool projects delete p-1",
        no="sometool projects list",
    ),
    Rule(
        "uv vsce ovsx sbt lein conan ohpm jsr ng-packagr rush lerna changeset release-it bun deno luarocks nuget expo "
        "caprover",
        "publish|unpublish|upload|deploy|push",
        reason="publishes a package",
        unless="--dry-run",
        key="package",
        yes="uv publish",
        no="uv sync",
    ),
    Rule(
        "dart flutter pod mix gradle gradlew mvn mvnw",
        reason="publishes a package",
        where=operand(
            lambda text: re.fullmatch(
                r"publish|hex\.publish|deploy|trunk|:?(?:[\w-]+:)*publish(?!ToMavenLocal)\w*", text
            )
        ),
        unless="--dry-run -n",
        key="package",
        yes="dart pub publish",
        no="gradle publishToMavenLocal",
    ),
    Rule(
        "gsutil gcloud",
        reason="makes a resource public",
        where=operand(lambda text: re.match(r"all(?:Authenticated)?Users\b", text)),
        key="cloud",
        yes="gsutil iam ch allUsers:objectViewer gs://b",
        no="gsutil iam get gs://b",
    ),
    Rule(
        "gcloud az",
        reason="creates a key for the account",
        where=makes_key,
        key="credential",
        yes="gcloud iam service-accounts keys create k.json --iam-account a",
        no="gcloud iam service-accounts list",
    ),
    Rule(
        "glab",
        "api",
        reason="deletes something through the service's API",
        where=lambda call: any(re.fullmatch(r"(?:-X|--method=)?(?:DELETE|delete)", word.text) for word in call.words),
        key="cloud",
        yes="glab api -X DELETE projects/1",
        no="glab api projects/1",
    ),
    Rule(
        "ansible",
        reason="shuts down or restarts hosts",
        where=switches_hosts_off,
        key="system_power",
        yes="ansible all -m reboot",
        no="ansible all -m ping",
    ),
)
