"""Records of remote services: never files, each change needs approval, and grants hold for one service."""

from __future__ import annotations

import pytest

from tests.approval.approval_cases import HOME, WORKSPACE, do, with_rules
from toolcrib.approval.grants import grant_for
from toolcrib.core.remote_records import is_uri, located, service_of
from toolcrib.core.types import Effect
from toolcrib.dispatch.effects import access_set

REMOTE = [
    ("s3://backups/2026/db.tar", "s3"),
    ("https://api.example.com/users/7", "api.example.com"),
    ("HTTPS://API.example.com:8443/users/7", "api.example.com"),
    ("mailto:bob@example.com", "mailto"),
    ("crm:contact/42", "crm"),
    ("urn:isbn:0451450523", "urn"),
    ("gs://bucket/key", "gs"),
    ("postgres+ssl://db/prod", "postgres+ssl"),
]


@pytest.mark.parametrize(("target", "service"), REMOTE)
@pytest.mark.parametrize("kind", ["write", "delete"])
def test_a_target_with_a_scheme_is_never_a_file(kind, target, service):
    """It is asked about although a relative path of that text would be inside the workspace."""
    decision = do(Effect(kind, target))

    [danger] = decision.dangers
    assert decision.outcome == "ask"
    assert danger.rule == ("remote_delete" if kind == "delete" else "remote_change")
    assert danger.scope == f"in {service.replace('+', '_')}"
    assert target in danger.reason


@pytest.mark.parametrize(
    "target",
    ["4711", "#12", "TICKET-17", "msg_01HZX8K2Q", "bob@example.com", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "a" * 32],
)
@pytest.mark.parametrize("kind", ["write", "delete"])
def test_a_bare_id_is_a_record(kind, target):
    """A tool that names no path does not write a file of the workspace."""
    assert do(Effect(kind, target)).outcome == "ask"


def test_an_id_that_is_the_name_of_a_file_is_that_file(tmp_path):
    """What exists in the workspace is a file, and our own tools always name files."""
    (tmp_path / "4711").touch()
    here = with_rules(workspace=str(tmp_path))

    assert do(Effect("delete", "4711"), policy=here).outcome == "allow"
    assert do(Effect("delete", "4712"), policy=here).outcome == "ask"


@pytest.mark.parametrize("target", ["a.txt", "./a:b", "sub/a:b.txt", "C:/x", "10:30.txt", f"{WORKSPACE}/s3:/x"])
def test_files_stay_files(target):
    """A colon behind a slash, a drive, or a time is no scheme."""
    assert not is_uri(target)
    assert do(Effect("write", target)).outcome == "allow"


@pytest.mark.parametrize(
    ("uri", "outcome", "rule"),
    [
        (f"file://{WORKSPACE}/a.txt", "allow", ""),
        ("file:///data/a.txt", "ask", "write_outside_workspace"),
        (f"file://localhost{HOME}/.bashrc", "deny", "sensitive_path"),
        (f"file:{HOME}/%2Ebashrc", "deny", "sensitive_path"),
        (f"FILE://{HOME}/.toolcrib/config.yaml", "deny", "sensitive_path"),
    ],
)
def test_a_file_address_is_judged_as_its_path(uri, outcome, rule):
    """Spelling a path as an address changes nothing."""
    decision = do(Effect("write", uri))

    assert decision.outcome == outcome
    assert [danger.rule for danger in decision.dangers] == ([rule] if rule else [])


def test_reading_a_record_needs_no_approval():
    """Like any other use of the network."""
    assert do(Effect("read", "s3://bucket/key")).outcome == "allow"
    assert do(Effect("remote", "42", service="crm", action="read")).outcome == "allow"


def test_a_declared_record_names_service_and_action():
    """The question says what would happen, to which record, and where."""
    [danger] = do(Effect("remote", "42", service="crm", action="archive"), tool="crm_archive").dangers

    assert danger.reason == "crm_archive wants to archive 42 in crm"
    assert (danger.rule, danger.scope) == ("remote_change", "in crm")


def test_a_grant_covers_the_same_change_in_the_same_service():
    """Not another service, and not a delete."""
    [danger] = do(Effect("write", "s3://a/1")).dangers
    granted = (grant_for(danger).text,)

    assert do(Effect("write", "s3://b/2"), grants=granted).outcome == "allow"
    assert do(Effect("delete", "s3://a/1"), grants=granted).outcome == "ask"
    assert do(Effect("write", "https://example.com/1"), grants=granted).outcome == "ask"
    assert do(Effect("write", "a.txt"), Effect("write", "/data/x"), grants=granted).outcome == "ask"


def test_a_host_with_wildcards_grants_nothing_else():
    """The name of a service comes from the model."""
    [danger] = do(Effect("write", "https://*/x")).dangers

    assert do(Effect("write", "https://example.com/1"), grants=(grant_for(danger).text,)).outcome == "ask"


@pytest.mark.parametrize(
    ("rule", "target", "outcome"),
    [
        ("allow tool:some_* in s3://mine", "s3://mine/key", "allow"),
        ("allow tool:some_* in s3://mine", "s3://mine-too/key", "ask"),
        ("allow tool:some_* in s3://mine/public", "s3://mine/public/../private", "ask"),
        ("allow tool:some_* in s3://mine", "https://example.com/s3://mine/key", "ask"),
        ("allow tool:some_*", "s3://mine/key", "allow"),
        ("allow tool:some_* in workspace", "s3://mine/key", "ask"),
        ("deny tool:some_* in s3://mine", "s3://mine/key", "deny"),
        ("allow tool:some_* in https://*.example.com/*", "https://a.example.com/x", "allow"),
    ],
)
def test_rules_may_name_addresses(rule, target, outcome):
    """A rule about a place covers what is at or below it."""
    assert do(Effect("write", target), policy=with_rules(rule)).outcome == outcome


def test_a_declared_record_matches_a_rule_by_service():
    """`crm:` stands for every record of that service."""
    effect = Effect("remote", "42", service="crm", action="update")

    assert do(effect, policy=with_rules("allow tool:* in crm:")).outcome == "allow"
    assert do(effect, policy=with_rules("allow tool:* in shop:")).outcome == "ask"


def test_an_unattended_session_denies_changes_of_records():
    """Where nobody can be asked, nothing outside changes."""
    assert do(Effect("delete", "s3://a/1"), policy=with_rules(attended=False)).outcome == "deny"


def test_changes_of_records_run_alone_and_are_no_files():
    """Their order matters, and undo and the other calls of a batch see no path."""
    [effect] = (located(Effect("delete", "s3://a/1")),)

    assert (effect.kind, effect.action, service_of(effect)) == ("remote", "delete", "s3")
    assert access_set((effect,), "/x").alone
    assert not access_set((located(Effect("read", "s3://a/1")),), "/x").alone
