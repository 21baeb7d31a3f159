"""From settings to an environment: the key of a task, the options of each backend, and what others bring."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.config.terminal_settings import (
    DaytonaSettings,
    DockerSettings,
    ModalSettings,
    SingularitySettings,
    SshSettings,
    TerminalSettings,
)
from toolcrib.core.environments import CommandRequest, Environment, EnvironmentSpec, Leftover
from toolcrib.core.errors import ConfigError, EnvironmentFailed, UnknownName
from toolcrib.environments.backend import EnvironmentRequest
from toolcrib.environments.backends import daytona, docker, modal, singularity, ssh, vercel_sandbox
from toolcrib.environments.create import (
    backend_statuses,
    create_environment,
    environment_request,
    leftovers,
    open_address,
    remove_leftover,
    resolve,
)
from toolcrib.environments.shell import ShellEnvironment
from toolcrib.environments.specs import BUILT_IN, ON_THIS_MACHINE, find_backend

USUAL = {"PATH": "/usr/bin:/bin", "HOME": "/home/me"}


def settings_with(**terminal: Any) -> Settings:
    return Settings(home=Home(Path("/nowhere/home")), terminal=TerminalSettings(**{"login_shell": False} | terminal))


def spec_of(overrides: Mapping[str, str] | None = None, **terminal: Any) -> EnvironmentSpec:
    return resolve(
        settings_with(**terminal), overrides or {}, session="s", workspace=Path("/work"), environ={"HOME": "/home/me"}
    )


async def output_of(environment: Environment, command: str) -> str:
    printed: list[bytes] = []
    async with asyncio.timeout(30):
        execution = await environment.start(CommandRequest(command=command), printed.append)
        await execution.wait()
    return b"".join(printed).decode()


# The key of a task


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("", "/work"),
        (".", "/work"),
        ("sub", "/work/sub"),
        ("/srv", "/srv"),
        ("~", "/home/me"),
        ("~/code", "/home/me/code"),
    ],
)
def test_the_folder_on_this_machine_is_a_full_path(written, means):
    """Two tasks in different folders have different keys, however the folder is written."""
    assert spec_of(cwd=written).cwd == means
    assert spec_of(backend="sandbox", cwd=written).cwd == means


def test_the_folder_elsewhere_is_kept_as_written():
    """A path of this machine means nothing on another one, and `.` means the usual folder there."""
    assert spec_of(backend="ssh", cwd="~/code").cwd == "~/code"
    assert spec_of(backend="docker", cwd=".").cwd == ""
    assert spec_of(backend="docker").options == ()


def test_a_mounted_folder_is_part_of_the_key():
    """Two workspaces never share the container that one of them is mounted in."""
    spec = spec_of(backend="docker", docker=DockerSettings(mount_cwd=True))

    assert dict(spec.options) == {"workspace": "/work"}


def test_the_key_holds_what_the_backend_is_reached_by():
    """Image, host and user come from the section of the backend in use, and from no other."""
    terminal = {"docker": DockerSettings(image="debian"), "ssh": SshSettings(host="box", user="me")}

    assert spec_of(backend="docker", **terminal) == EnvironmentSpec(backend="docker", session="s", image="debian")
    assert spec_of(backend="ssh", **terminal) == EnvironmentSpec(backend="ssh", session="s", host="box", user="me")
    assert spec_of(**terminal) == EnvironmentSpec(backend="local", session="s", cwd="/work")


def test_a_task_can_override_backend_image_and_folder():
    """`env_type` is the reference's word for the backend; an image counts for its own backend alone."""
    overrides = {"env_type": "docker", "docker_image": "alpine", "modal_image": "other", "cwd": "/app"}

    spec = spec_of(overrides)

    assert spec == EnvironmentSpec(backend="docker", session="s", image="alpine", cwd="/app")
    assert spec_of({"modal_image": "x"}) == spec_of()
    assert spec_of({"backend": "modal", "image": "y"}).image == "y"


def test_a_task_shares_the_environment_of_the_session_that_it_names():
    """Only by naming it: everybody else has a key of his own."""
    parent = spec_of()
    child = resolve(
        settings_with(), {"session": "s"}, session="child", workspace=Path("/work"), environ={"HOME": "/home/me"}
    )

    assert child == parent
    assert replace(parent, session="child") != parent


def test_an_unknown_backend_is_refused_with_the_nearest():
    """The name is checked when it is used, for a third party may bring one."""
    with pytest.raises(UnknownName, match=r"unknown terminal backend 'dockr'; did you mean 'docker'\?"):
        spec_of(backend="dockr")
    with pytest.raises(ConfigError, match="did you mean 'docker_image'"):
        spec_of({"docker_imge": "x"})
    assert spec_of(backend="vercel").backend == "vercel_sandbox"
    assert spec_of(backend=" Docker ").backend == "docker"


# Options and engines


def request_for(kind: str, environ: Mapping[str, str] | None = None, **terminal: Any) -> EnvironmentRequest:
    settings = settings_with(backend=kind, **terminal)
    spec = resolve(settings, {}, session="s", workspace=Path("/work"), environ=USUAL)
    return environment_request(spec, settings, USUAL | (environ or {}))


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_backend_declares_itself(kind):
    """Its module is named after it, its section exists, and the table of backends on this machine agrees with it."""
    backend = find_backend(kind)

    assert backend.kind == kind
    assert (backend.location == "host") is (kind in ON_THIS_MACHINE)
    assert (backend.settings(TerminalSettings()) is None) is (kind == "local")
    assert (backend.leftovers is None) is (backend.remove is None)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_backend_can_be_made_from_default_settings(kind):
    """Options and engine agree with each other; making one opens nothing."""
    environment = find_backend(kind).create(request_for(kind))

    assert isinstance(environment, ShellEnvironment)
    assert environment.kind == environment.engine.kind == kind
    assert environment.engine.shell


def test_docker_gets_what_its_section_says():
    """Mounts, limits and the client's own variables; files stay the user's where something is mounted."""
    section = DockerSettings(engine="podman", volumes=["~/data:/data:ro"], mount_cwd=True, pids=9, network=False)

    options = docker.options_from(request_for("docker", {"DOCKER_HOST": "unix:///x", "API_KEY": "k"}, docker=section))

    assert (options.binary, options.volumes, options.workspace) == (
        "podman",
        ("/home/me/data:/data:ro",),
        Path("/work"),
    )
    assert (options.pids_limit, options.network, options.run_as_host_user) == (9, False, True)
    assert options.environ == USUAL | {"DOCKER_HOST": "unix:///x"}
    assert not docker.options_from(request_for("docker")).run_as_host_user


def test_elsewhere_commands_get_only_what_was_named():
    """Of this machine's variables, those that the settings name; patterns pass no secret and no password of a proxy."""
    environ = {"MINE": "1", "MY_TOKEN": "2", "LANG": "C", "http_proxy": "http://me:pw@proxy:1", "KEPT_KEY": "3"}
    section = DockerSettings(env_passthrough=["KEPT_KEY"], env={"SET": "docker"})

    request = request_for(
        "docker", environ, docker=section, env_passthrough=["M*", "http_*"], env={"SET": "all", "A": "b"}
    )
    for_ssh = request_for("ssh", environ, docker=section, env_passthrough=["MY_TOKEN"])

    assert request.variables() == {
        "MINE": "1",
        "http_proxy": "http://proxy:1",
        "KEPT_KEY": "3",
        "SET": "docker",
        "A": "b",
    }
    assert for_ssh.variables() == {"MY_TOKEN": "2"}
    assert "me:pw" not in repr(for_ssh)


def test_a_volume_without_a_target_is_refused():
    """What would be mounted where is never guessed."""
    with pytest.raises(EnvironmentFailed, match="must be HOST:CONTAINER"):
        docker.options_from(request_for("docker", docker=DockerSettings(volumes=["/data"])))
    with pytest.raises(EnvironmentFailed, match="must be an absolute path"):
        singularity.options_from(request_for("singularity", singularity=SingularitySettings(overlay="kept")))


def test_ssh_gets_paths_of_this_machine_and_the_agent():
    """The key is a file here; the agent's address comes from the environment."""
    section = SshSettings(host="box", user="me", port=22022, key="~/.ssh/id", accept_new_host_keys=False)

    options = ssh.options_from(request_for("ssh", {"SSH_AUTH_SOCK": "/run/agent"}, ssh=section))

    assert (options.host, options.user, options.port, options.key) == ("box", "me", 22022, "/home/me/.ssh/id")
    assert (options.agent_path, options.accept_new_host_keys) == ("/run/agent", False)


def test_hosted_backends_get_their_keys_and_limits():
    """Keys come from the environment and are never shown; 0 means what the service usually gives."""
    keys = {"MODAL_TOKEN_ID": "id", "MODAL_TOKEN_SECRET": "hush", "DAYTONA_API_KEY": "hush", "VERCEL_TOKEN": "hush"}

    for_modal = modal.options_from(request_for("modal", keys, modal=ModalSettings(cpus=2, max_lifetime_seconds=60)))
    for_daytona = daytona.options_from(request_for("daytona", keys, daytona=DaytonaSettings(disk_mb=2048)))
    for_vercel = vercel_sandbox.options_from(request_for("vercel_sandbox", keys))

    assert (for_modal.token_id, for_modal.cpu, for_modal.memory_mb, for_modal.lifetime_seconds) == ("id", 2, None, 60)
    assert (for_daytona.api_key, for_daytona.disk_mb, for_daytona.cpu) == ("hush", 2048, None)
    assert for_vercel.token == "hush"
    assert "hush" not in repr((for_modal, for_daytona, for_vercel))


def test_an_unused_backend_is_not_loaded():
    """Making a local environment imports no other backend and no SDK."""
    code = (
        "import sys\n"
        "from toolcrib.environments.create import create_environment\n"
        "from toolcrib.core.environments import EnvironmentSpec\n"
        "from toolcrib.config.settings import Settings\n"
        "create_environment(EnvironmentSpec(backend='local', session=''), Settings(), {})\n"
        "names = 'asyncssh modal daytona vercel importlib.metadata toolcrib.environments.backends.docker'.split()\n"
        "print([name for name in names if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("[]\n", "")


# Commands in what was made


async def test_commands_get_only_what_the_settings_let_through(tmp_path):
    """Named variables and set ones arrive, secrets and the rest of our own environment do not."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "MINE": "1",
        "OTHER": "2",
        "MY_TOKEN": "3",
        "API_KEY": "4",
    }
    settings = settings_with(env_passthrough=["MINE", "MY_TOKEN"], env={"SET": "5"})
    spec = resolve(settings, {}, session="s", workspace=tmp_path, environ=environ)
    environment = create_environment(spec, settings, environ)
    await environment.open()
    try:
        printed = await output_of(environment, 'echo "$MINE $MY_TOKEN $SET [$OTHER$API_KEY]"; pwd')
    finally:
        await environment.close()

    assert printed == f"1 3 5 []\n{tmp_path}\n"


async def test_the_profile_is_read_once_without_its_secrets(tmp_path):
    """What ~/.bashrc exports and defines is there; a token in it is not, unless it is passed by name."""
    (tmp_path / ".bashrc").write_text("export FROM_PROFILE=yes MY_TOKEN=profile OTHER_TOKEN=profile\nf() { echo f; }\n")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MY_TOKEN": "ours"}
    settings = settings_with(login_shell=True, env_passthrough=["MY_TOKEN"])
    spec = resolve(settings, {}, session="s", workspace=tmp_path, environ=environ)
    environment = create_environment(spec, settings, environ)
    await environment.open()
    try:
        printed = await output_of(environment, 'echo "$FROM_PROFILE $MY_TOKEN [$OTHER_TOKEN]"; f')
    finally:
        await environment.close()

    assert printed == "yes ours []\nf\n"


async def test_an_environment_is_found_again_by_its_address(tmp_path):
    """After a crash another process opens the same folder and hears the rest of a background command."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    settings = settings_with()
    spec = resolve(settings, {}, session="s", workspace=tmp_path, environ=environ)
    first = create_environment(spec, settings, environ)
    await first.open()
    execution = await first.start(CommandRequest(command="echo done", mode="background", id="bg"), lambda _: None)
    await execution.wait()
    printed: asyncio.Queue[bytes] = asyncio.Queue()

    second = open_address(first.address(), settings, environ)
    await second.open()
    try:
        found = await second.reattach("bg", printed.put_nowait)
        async with asyncio.timeout(30):
            heard = await printed.get()
    finally:
        await second.close()
        await first.close()

    assert (second.kind, second.address()) == ("local", first.address())
    assert found is not None
    assert heard == b"done\n"


def test_addresses_lead_back_to_their_engines():
    """A container, an instance, a sandbox or a machine is reached again as its address says."""
    settings = settings_with()
    container = open_address(
        {"kind": "docker", "folder": "/tmp/x", "container": "abc", "binary": "podman"}, settings, USUAL
    )
    login = {"host": "box", "port": "2", "user": "u"}
    machine = open_address({"kind": "ssh", "folder": "/tmp/y", **login}, settings, USUAL)

    assert (container.kind, container.address()["folder"]) == ("docker", "/tmp/x")
    assert machine.address().items() >= {**login, "folder": "/tmp/y"}.items()
    with pytest.raises(EnvironmentFailed, match="ends with the process"):
        open_address({"kind": "sandbox"}, settings, USUAL)
    with pytest.raises(UnknownName):
        open_address({"kind": "elsewhere"}, settings, USUAL)


# All backends


async def test_every_backend_says_whether_it_works_here():
    """One line a backend, with a remedy where it does not work, whatever is installed."""
    statuses = await backend_statuses(settings_with(), USUAL)

    assert sorted(status.kind for status in statuses[: len(BUILT_IN)]) == list(BUILT_IN)
    assert statuses[0].usable
    for status in statuses:
        assert status.detail
        assert status.usable or status.remedy


async def test_a_broken_section_is_a_status_and_not_an_exception():
    """A bad volume makes docker unusable, and only docker."""
    statuses = await backend_statuses(settings_with(docker=DockerSettings(volumes=["/data"])), USUAL)

    broken = next(status for status in statuses if status.kind == "docker")
    assert not broken.usable
    assert "HOST:CONTAINER" in broken.detail
    assert statuses[0].usable


async def test_leftovers_are_asked_of_what_can_be_used():
    """Without engines and keys there is nobody to ask, and no problem."""
    found, problems = await leftovers(settings_with(), {"PATH": "/nowhere", "HOME": "/nowhere"})

    assert [left for left in found if not left.kind.startswith("sandbox")] == []
    assert problems == []


async def test_a_leftover_of_an_unknown_backend_is_refused():
    """The first word of its kind says who can remove it."""
    leftover = Leftover(kind="balloon thing", name="x", detail="", owner_alive=False)

    with pytest.raises(UnknownName, match="'balloon'"):
        await remove_leftover(leftover, settings_with(), USUAL)


# What other packages bring

PACKAGE = """
import subprocess
from toolcrib.testing.environments import FakeEnvironment

class Runner:
    def _run_bash(self, cmd_string, *, login=False, timeout=120, stdin_data=None):
        process = subprocess.Popen(["bash", "-c", cmd_string], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, env={"PATH": "/usr/bin:/bin"}, text=True)
        if stdin_data:
            process.stdin.write(stdin_data)
        process.stdin.close()
        return process

    def cleanup(self):
        pass

def environment(spec, settings):
    return FakeEnvironment(cwd=spec.cwd)

def engine(spec, settings):
    from toolcrib.environments.backends.local import LocalEngine
    return LocalEngine({"PATH": "/usr/bin:/bin", "HOME": "/"})

def runner(spec, settings):
    return Runner()

def junk(spec, settings):
    return 3
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with four backends, as pip would install it."""
    site = tmp_path / "site"
    about = site / "brought-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "brought.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    names = ("environment", "engine", "runner", "junk", "local")
    rows = "".join(f"my-{name} = brought:{name}\n" for name in names[:-1])
    (about / "entry_points.txt").write_text(f"[toolcrib.environments]\n{rows}local = brought:junk\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "brought", raising=False)


async def test_an_installed_package_can_bring_backends(installed):
    """They are listed after ours, take part in the settings by name, and cannot replace one of ours."""
    statuses = await backend_statuses(settings_with(), USUAL)

    theirs = {status.kind: status.detail for status in statuses[len(BUILT_IN) :]}
    assert sorted(theirs) == ["my-engine", "my-environment", "my-junk", "my-runner"]
    assert theirs["my-engine"] == "installed by brought"
    assert spec_of(backend="my-engine").backend == "my-engine"
    with pytest.raises(UnknownName, match="did you mean 'my-engine'"):
        spec_of(backend="my-engin")


def made_by(name: str) -> Environment:
    settings = settings_with(backend=name, env={"A": "b"})
    spec = resolve(settings, {"cwd": "/tmp"}, session="s", workspace=Path("/work"), environ=USUAL)
    return create_environment(spec, settings, USUAL)


async def test_a_backend_may_be_an_environment(installed):
    """It is used as it is."""
    assert (made_by("my-environment").kind, made_by("my-environment").cwd) == ("fake", "/tmp")


@pytest.mark.parametrize("name", ["my-engine", "my-runner"])
async def test_a_backend_may_be_an_engine_or_run_bash(installed, name):
    """Either gets the same shell session as ours: folder, variables, functions, exit codes, files."""
    environment = made_by(name)
    await environment.open()
    try:
        assert await output_of(environment, "pwd; f() { echo $A; }; export X=1; cd /") == "/tmp\n"
        assert await output_of(environment, "f; echo $X; pwd; exit 3") == "b\n1\n/\n"
        execution = await environment.start(CommandRequest(command="exit 7"), lambda _: None)
        async with asyncio.timeout(30):
            assert (await execution.wait()).exit_code == 7
    finally:
        await environment.close()


async def test_what_is_no_backend_is_said(installed):
    """An entry point that gives something else names itself."""
    with pytest.raises(EnvironmentFailed, match="'my-junk' returned an object of type int"):
        made_by("my-junk")
