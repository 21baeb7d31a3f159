"""What a child process gets of our environment."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config.environment import ALLOWED, child_environment, looks_secret

NAMES = st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=20)
KEY = "sk-abcdefghijklmnop1234"


def test_what_programs_need_to_work_passes() -> None:
    """Path, home, language, terminal, folders and toolchains reach the child unchanged."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/me",
        "LANG": "de_DE.UTF-8",
        "LC_TIME": "C",
        "TERM": "xterm",
        "XDG_CONFIG_HOME": "/home/me/.config",
        "SSH_AUTH_SOCK": "/run/user/1/ssh",
        "JAVA_HOME": "/opt/java",
        "SSL_CERT_FILE": "/etc/ca.pem",
    }

    assert child_environment(environ) == environ


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY", "GH_TOKEN", "PGPASSWORD", "DATABASE_URL", "AWS_PROFILE", "TOOLCRIB_YOLO", "LC_PASSWORD",
        "XDG_SOMETHING", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "SUDO_PASSWORD", "KUBECONFIG",
    ],
)  # fmt: skip
def test_everything_else_stays_here(name: str) -> None:
    """Only listed names pass; an unforeseen name does not."""
    assert child_environment({name: "value", "PATH": "/bin"}) == {"PATH": "/bin"}


@given(st.dictionaries(NAMES, st.text(max_size=30), max_size=8))
def test_no_variable_passes_that_is_not_on_the_list(environ: dict[str, str]) -> None:
    """Secrets are removed, whatever their name or value."""
    assert child_environment(environ).keys() <= ALLOWED


@pytest.mark.parametrize("name", ["EDITOR", "LESS", "XDG_SESSION_ID", "PAGER"])
def test_an_allowed_name_with_a_secret_in_it_stays_here(name: str) -> None:
    """A key does not slip through in a harmless variable."""
    assert child_environment({name: f"x {KEY}"}) == {}


@pytest.mark.parametrize(
    ("address", "passed"),
    [
        ("http://proxy.example:3128", "http://proxy.example:3128"),
        ("http://me:hunter2@proxy.example:3128", "http://proxy.example:3128"),
        ("http://token@proxy.example:3128/", "http://proxy.example:3128/"),
        ("socks5h://a:b@[::1]:1080", "socks5h://[::1]:1080"),
    ],
)
def test_a_proxy_passes_without_its_password(address: str, passed: str) -> None:
    """The child gets the address, but not the account in it."""
    assert child_environment({"https_proxy": address}) == {"https_proxy": passed}


def test_a_named_variable_passes_even_with_a_secret() -> None:
    """Naming a variable in `env_passthrough` is consent."""
    environ = {"GH_TOKEN": KEY, "OTHER_TOKEN": KEY, "https_proxy": "http://me:pw@host"}

    child = child_environment(environ, passthrough=["GH_TOKEN", "https_proxy", "NOT_SET"])

    assert child == {"GH_TOKEN": KEY, "https_proxy": "http://me:pw@host"}


def test_a_pattern_passes_what_it_matches_but_no_secret() -> None:
    """A pattern is refused, because no one sees all that it will match."""
    environ = {"MY_MODE": "fast", "MY_TOKEN": "abc", "MY_NOTE": KEY, "OTHER": "x", "my_mode": "slow"}

    assert child_environment(environ, passthrough=["MY_*"]) == {"MY_MODE": "fast"}


def test_extra_variables_win() -> None:
    """What the caller sets for this child overrides what is inherited."""
    assert child_environment({"TERM": "xterm", "A": "1"}, extra={"TERM": "dumb", "B": "2"}) == {
        "TERM": "dumb",
        "B": "2",
    }


def test_our_own_interpreter_is_not_the_childs() -> None:
    """toolcrib's own virtual environment says nothing about the project; one of the user's does."""
    assert child_environment({"VIRTUAL_ENV": sys.prefix}) == {}
    assert child_environment({"VIRTUAL_ENV": "/project/.venv"}) == {"VIRTUAL_ENV": "/project/.venv"}


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("STRIPE_KEY", "x", True), ("PGPASSWORD", "x", True), ("SECRET_SAUCE", "x", True), ("DB_PASS", "x", True),
        ("OPENAI_API_KEY", "x", True), ("NOTE", KEY, True), ("KEYBOARD", "de", False), ("PASSAGE", "x", False),
        ("MONKEY", "x", False), ("EDITOR", "vim", False),
    ],
)  # fmt: skip
def test_secrets_are_known_by_name_or_by_value(name: str, value: str, secret: bool) -> None:
    """Words that merely contain such letters are not taken for a secret."""
    assert looks_secret(name, value) is secret


def test_a_real_child_does_not_see_the_key() -> None:
    """The environment works for a real program, and does not contain the key."""
    environ = {"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": KEY}

    seen = subprocess.run(["env"], env=child_environment(environ), capture_output=True, text=True, check=True).stdout

    assert seen == "PATH=/usr/bin:/bin\n"
