"""The `terminal` section: what stands in the file, what TERMINAL_* variables change, what an old home brings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config.hermes_import import apply_import, plan_import
from toolcrib.config.load import HERMES_KEYS, VARIABLES, load_settings, with_variables
from toolcrib.config.paths import Home, find_home
from toolcrib.config.schema import find_setting
from toolcrib.config.settings import Settings
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.core.errors import ConfigError


def test_the_defaults_are_the_documented_ones():
    """Without a config commands run here, for three minutes, and a place lives for five."""
    terminal = TerminalSettings()

    assert (terminal.backend, terminal.timeout, terminal.max_foreground_timeout) == ("local", 180, 600)
    assert (terminal.lifetime_seconds, terminal.orphans, terminal.max_saved_output_mb) == (300, "end", 64)
    assert terminal.docker.image.startswith("nikolaik/python-nodejs")
    assert terminal.singularity.image == f"docker://{terminal.docker.image}"


def test_sections_of_backends_are_read(write_config):
    """Each backend has a section of its own, as strict as the rest of the file."""
    home = write_config(
        "terminal:\n"
        "  backend: docker\n"
        "  env: {EDITOR: vi}\n"
        "  docker: {engine: podman, volumes: ['/data:/data:ro'], run_as_host_user: true, cpus: 0.5}\n"
        "  ssh: {host: build, port: 2222}\n"
        "  sandbox: {network: false, use: landlock}\n"
    )

    terminal = load_settings(home, {}).terminal

    assert (terminal.backend, terminal.env) == ("docker", {"EDITOR": "vi"})
    assert (terminal.docker.engine, terminal.docker.volumes, terminal.docker.cpus) == (
        "podman",
        ["/data:/data:ro"],
        0.5,
    )
    assert (terminal.docker.run_as_host_user, terminal.ssh.host, terminal.ssh.port) == ("on", "build", 2222)
    assert (terminal.sandbox.network, terminal.sandbox.use) == (False, "landlock")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("terminal: {docker: {imge: x}}\n", "did you mean 'terminal.docker.image'"),
        ("terminal: {docker_image: x}\n", "unknown key 'terminal.docker_image'"),
        ("terminal: {ssh: {port: 70000}}\n", "'terminal.ssh.port' should be at most 65535"),
        ("terminal: {timeout: 0}\n", "'terminal.timeout' should be more than 0"),
        ("terminal: {orphans: keep}\n", "'terminal.orphans' should be one of end, adopt"),
    ],
)
def test_mistakes_in_the_section_are_named(write_config, text, said):
    """A wrong key or value of a backend is an error that says what was meant."""
    with pytest.raises(ConfigError) as caught:
        load_settings(write_config(text), {})

    assert said in str(caught.value)


def test_variables_win_over_the_file(write_config):
    """Each TERMINAL_* variable replaces the value of its key, with the type of that key."""
    home = write_config("terminal: {backend: local, timeout: 5, ssh: {host: old, user: me}}\n")

    terminal = load_settings(
        home,
        {
            "TERMINAL_ENV": "ssh",
            "TERMINAL_CWD": "/srv",
            "TERMINAL_TIMEOUT": "20",
            "TERMINAL_SSH_HOST": "new",
            "TERMINAL_SSH_PORT": "2222",
            "TERMINAL_SSH_KEY": "~/.ssh/id",
            "TERMINAL_DOCKER_IMAGE": "debian:12",
            "TERMINAL_DOCKER_VOLUMES": '["/a:/a", "/b:/b"]',
            "TERMINAL_DOCKER_FORWARD_ENV": "ONE, TWO",
            "TERMINAL_DOCKER_ENV": '{"A": "1"}',
            "TERMINAL_DOCKER_NETWORK": "no",
            "TERMINAL_DOCKER_RUN_AS_HOST_USER": "true",
            "TERMINAL_CONTAINER_CPU": "2",
        },
    ).terminal

    assert (terminal.backend, terminal.cwd, terminal.timeout) == ("ssh", "/srv", 20.0)
    assert (terminal.ssh.host, terminal.ssh.user, terminal.ssh.port, terminal.ssh.key) == (
        "new",
        "me",
        2222,
        "~/.ssh/id",
    )
    assert (terminal.docker.image, terminal.docker.volumes) == ("debian:12", ["/a:/a", "/b:/b"])
    assert (terminal.docker.env_passthrough, terminal.docker.env) == (["ONE", "TWO"], {"A": "1"})
    assert (terminal.docker.network, terminal.docker.run_as_host_user) == (False, "on")
    assert (terminal.docker.cpus, terminal.modal.cpus, terminal.daytona.cpus) == (2, 2, 2)


def test_variables_may_stand_in_the_env_file(write_config):
    """What `toolcrib setup` keeps in .env counts; the environment of the process wins over it."""
    home = write_config("")
    home.env_file.write_text("TERMINAL_SSH_HOST=from-file\nTERMINAL_SSH_USER=from-file\n")

    ssh = load_settings(home, {"TERMINAL_SSH_USER": "from-process"}).terminal.ssh

    assert (ssh.host, ssh.user) == ("from-file", "from-process")


def test_an_empty_variable_counts_as_unset(write_config):
    """Setting a variable to nothing leaves the file in force."""
    home = write_config("terminal: {timeout: 5}\n")

    assert load_settings(home, {"TERMINAL_TIMEOUT": " ", "TERMINAL_ENV": ""}).terminal.timeout == 5


def test_a_variable_that_cannot_be_used_is_named(home):
    """Every bad variable has a line of its own: its name, what was expected, what to do."""
    environ = {
        "TERMINAL_TIMEOUT": "soon",
        "TERMINAL_SSH_PORT": "99999",
        "TERMINAL_DOCKER_NETWORK": "perhaps",
        "TERMINAL_DOCKER_ENV": "A=1",
        "TERMINAL_DOCKER_VOLUMES": "[1",
        "TERMINAL_CONTAINER_MEMORY": "1.5",
    }

    with pytest.raises(ConfigError) as caught:
        load_settings(home, environ)

    lines = str(caught.value).splitlines()
    assert len(lines) == len(environ)
    for variable in environ:
        (line,) = [line for line in lines if f"the variable {variable} should be" in line]
        assert line.endswith("; correct or unset it in the environment or in .env")


@given(st.sampled_from(sorted(VARIABLES)), st.text(st.characters(blacklist_characters="\0"), max_size=20))
def test_any_text_in_a_variable_is_used_or_refused_by_name(variable, text):
    """No text of a variable makes loading fail in any other way."""
    said = variable
    try:
        with_variables(Settings(home=Home(Path("home"))), {variable: text})
    except ConfigError as error:
        said = str(error)

    assert variable in said


def test_every_variable_and_old_key_leads_to_a_setting():
    """The table names only settings that exist."""
    for keys in [*VARIABLES.values(), *HERMES_KEYS.values()]:
        for key in keys:
            assert find_setting(f"terminal.{key}")


def test_the_flat_keys_of_an_old_home_are_imported(tmp_path, home):
    """`terminal.docker_image` arrives as `terminal.docker.image`; a key without a meaning here is listed."""
    old = tmp_path / "hermes"
    old.mkdir()
    (old / "config.yaml").write_text(
        "terminal: {backend: docker, cwd: ., timeout: 60, docker_image: debian, docker_volumes: ['/a:/a'],\n"
        "  docker_env: {A: b}, container_memory: 1024, persistent_shell: true, auto_source_bashrc: no,\n"
        "  docker_run_as_host_user: true, modal_mode: auto}\n"
    )

    plan = plan_import(old, home)
    problems = apply_import(plan)

    terminal = load_settings(home, {}).terminal
    left = [item.name for item in plan.items if item.action == "not carried over"]
    assert problems == []
    assert left == ["config.yaml: terminal.persistent_shell", "config.yaml: terminal.modal_mode"]
    assert "config.yaml: terminal.docker_image (here: terminal.docker.image)" in {item.name for item in plan.items}
    assert (terminal.backend, terminal.timeout, terminal.docker.image) == ("docker", 60, "debian")
    assert (terminal.docker.volumes, terminal.docker.env, terminal.docker.memory_mb) == (["/a:/a"], {"A": "b"}, 1024)
    assert (terminal.modal.memory_mb, terminal.login_shell) == (1024, False)
    assert terminal.docker.run_as_host_user == "on"


def test_a_home_shared_with_the_old_system_is_read_with_its_keys(tmp_path):
    """In a HERMES_HOME the flat keys are in force, and what is written in our way wins over them."""
    (tmp_path / "config.yaml").write_text(
        "terminal: {backend: docker, docker_image: old, ssh_host: box, timeout: 7, docker: {image: new, pids: 9}}\n"
    )

    terminal = load_settings(None, {"HERMES_HOME": str(tmp_path)}).terminal

    assert (terminal.backend, terminal.timeout, terminal.ssh.host) == ("docker", 7, "box")
    assert (terminal.docker.image, terminal.docker.pids) == ("new", 9)
    assert find_home({"HERMES_HOME": str(tmp_path)}).shared_with_hermes


@pytest.mark.parametrize("terminal", ["null", "[]", "text", "{docker: 3, docker_image: x}"])
def test_a_broken_section_of_an_old_home_is_reported_as_usual(tmp_path, terminal):
    """Reading the flat keys never fails by itself."""
    (tmp_path / "config.yaml").write_text(f"terminal: {terminal}\n")
    environ = {"HERMES_HOME": str(tmp_path)}

    if terminal == "null":
        assert load_settings(None, environ).terminal == TerminalSettings()
    else:
        with pytest.raises(ConfigError, match="'terminal"):
            load_settings(None, environ)


def test_the_variables_are_in_the_reference():
    """The page on environment variables names each one."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")

    assert [name for name in VARIABLES if f"`{name}`" not in page] == []
