"""Where and how commands run: the `terminal` section and one section for each backend that has settings.

Like settings.py, this holds real annotations, and the text under each field is its entry in the reference docs.
"""

from dataclasses import dataclass, field
from typing import Literal

from toolcrib.config.limits import ABOVE_ZERO, AT_LEAST_ONE, AT_LEAST_ZERO

DEFAULT_IMAGE = "nikolaik/python-nodejs:python3.11-nodejs20"
PORT = {"minimum": 0, "maximum": 65_535}


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    """The `sandbox` backend: this machine, with most of it out of reach."""

    use: Literal["auto", "bubblewrap", "landlock"] = "auto"
    """What the kernel is asked with; `auto` takes bubblewrap where it works, else Landlock."""
    network: bool = False
    """Let commands use the network."""
    writable: list[str] = field(default_factory=list)
    """Folders that commands may write to, besides the one that they start in."""
    readable: list[str] = field(default_factory=list)
    """Folders that commands may read besides the system's, for example one in your home."""


@dataclass(frozen=True, kw_only=True)
class DockerSettings:
    """The `docker` backend: a container for each task, by Docker or Podman."""

    engine: Literal["auto", "docker", "podman"] = "auto"
    """The program that runs containers; `auto` takes docker where it answers, else podman."""
    image: str = DEFAULT_IMAGE
    """The image that containers are made from; bash must be in it."""
    volumes: list[str] = field(default_factory=list)
    """Folders of this machine that containers see, as HOST:CONTAINER, or HOST:CONTAINER:ro to only read."""
    mount_cwd: bool = False
    """Mount the folder that toolcrib was started in as /workspace, and start there."""
    run_as_host_user: Literal["auto", "on", "off"] = "auto"
    """Run as your own user, so that files in mounts stay yours; `auto` does so when something is mounted."""
    network: bool = True
    """Let containers use the network."""
    cpus: float = field(default=1, metadata=AT_LEAST_ZERO)
    """How many processors one container may use; 0 means no limit."""
    memory_mb: int = field(default=5120, metadata=AT_LEAST_ZERO)
    """How much memory one container may use, in megabytes; 0 means no limit."""
    pids: int = field(default=256, metadata=AT_LEAST_ZERO)
    """How many processes one container may hold; 0 means no limit."""
    disk_mb: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How much one container may write, in megabytes, where the engine's storage can count that; 0 means no limit."""
    persistent: bool = False
    """Keep the container of a session when it is given back, and go on in it the next time."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables for commands in containers alone, besides `terminal.env`."""
    env_passthrough: list[str] = field(default_factory=list)
    """Variables of this machine for commands in containers alone, besides `terminal.env_passthrough`."""
    extra_args: list[str] = field(default_factory=list)
    """More arguments for `docker run`, each as an item of its own."""


@dataclass(frozen=True, kw_only=True)
class SshSettings:
    """The `ssh` backend: another machine."""

    host: str = ""
    """The machine to log in to, by name, address or the name of an entry in your ssh config."""
    user: str = ""
    """Who to log in as; empty means what your ssh config says, else your own name."""
    port: int = field(default=0, metadata=PORT)
    """The port that sshd answers at; 0 means what your ssh config says, else 22."""
    key: str = ""
    """The file with your private key; empty means your agent and the usual files."""
    known_hosts: str = ""
    """The file with the keys of known machines; empty means what your ssh config says, else ~/.ssh/known_hosts."""
    accept_new_host_keys: bool = True
    """Trust a machine that was never seen before, and remember its key; one whose key changed is refused anyway."""


@dataclass(frozen=True, kw_only=True)
class SingularitySettings:
    """The `singularity` backend: a container for each task, by Apptainer or Singularity."""

    image: str = f"docker://{DEFAULT_IMAGE}"
    """A .sif file, a folder with a root file system, or an address such as docker://NAME."""
    overlay: str = ""
    """A folder that keeps what commands change; empty means that changes are gone afterwards."""
    binds: list[str] = field(default_factory=list)
    """Folders of this machine that containers see, as HOST:CONTAINER, or HOST:CONTAINER:ro to only read."""
    network: bool = True
    """Let containers use the network."""
    cpus: float = field(default=0, metadata=AT_LEAST_ZERO)
    """How many processors one container may use; 0 means no limit."""
    memory_mb: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How much memory one container may use, in megabytes; 0 means no limit."""
    pids: int = field(default=256, metadata=AT_LEAST_ZERO)
    """How many processes one container may hold; 0 means no limit."""
    extra_args: list[str] = field(default_factory=list)
    """More arguments for `apptainer instance start`, each as an item of its own."""


@dataclass(frozen=True, kw_only=True)
class ModalSettings:
    """The `modal` backend: sandboxes in the cloud of Modal."""

    image: str = DEFAULT_IMAGE
    """The image that sandboxes are made from, by its name in a registry; bash must be in it."""
    app: str = "toolcrib"
    """The app in your account that sandboxes belong to; it is made when it is missing."""
    max_lifetime_seconds: int = field(default=14_400, metadata=AT_LEAST_ONE)
    """When Modal ends a sandbox by itself, whatever happens here."""
    cpus: float = field(default=0, metadata=AT_LEAST_ZERO)
    """How many processors one sandbox gets; 0 means Modal's usual number."""
    memory_mb: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How much memory one sandbox gets, in megabytes; 0 means Modal's usual amount."""
    network: bool = True
    """Let sandboxes use the network."""


@dataclass(frozen=True, kw_only=True)
class DaytonaSettings:
    """The `daytona` backend: sandboxes in the cloud of Daytona."""

    image: str = DEFAULT_IMAGE
    """The image that sandboxes are made from, by its name in a registry; bash must be in it."""
    max_lifetime_seconds: int = field(default=86_400, metadata=AT_LEAST_ONE)
    """When Daytona deletes a sandbox by itself, whatever happens here."""
    idle_seconds: int = field(default=1800, metadata=AT_LEAST_ONE)
    """When Daytona deletes one that nobody called in the meantime."""
    cpus: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How many processors one sandbox gets; 0 means Daytona's usual number."""
    memory_mb: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How much memory one sandbox gets, in megabytes; 0 means Daytona's usual amount."""
    disk_mb: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How large its disk is, in megabytes; 0 means Daytona's usual size."""
    network: bool = True
    """Let sandboxes use the network."""


@dataclass(frozen=True, kw_only=True)
class VercelSettings:
    """The `vercel_sandbox` backend: sandboxes in the cloud of Vercel."""

    image: str = ""
    """An image of Vercel's own registry; empty means Vercel's usual one."""
    max_lifetime_seconds: int = field(default=2700, metadata=AT_LEAST_ONE)
    """When Vercel ends a sandbox by itself, whatever happens here; more than 2700 needs a paid plan."""
    cpus: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How many processors one sandbox gets; 0 means Vercel's usual number."""
    memory_mb: int = field(default=0, metadata=AT_LEAST_ZERO)
    """How much memory one sandbox gets, in megabytes; 0 means Vercel's usual amount."""
    network: bool = True
    """Let sandboxes use the network."""


@dataclass(frozen=True, kw_only=True)
class TerminalSettings:
    """Where and how commands run."""

    backend: str = "local"
    """`local`, `sandbox`, `docker`, `ssh`, `singularity`, `modal`, `daytona`, `vercel_sandbox`, or the name of one that
    you installed. `toolcrib env list` says which of them work here."""
    cwd: str = ""
    """The folder that commands start in; empty or `.` means the one that toolcrib was started in, and the usual one on
    other machines and in containers."""
    timeout: float = field(default=180, metadata=ABOVE_ZERO)
    """How many seconds a command may take when the model does not say."""
    max_foreground_timeout: float = field(default=600, metadata=ABOVE_ZERO)
    """The most seconds that the model may ask for; what takes longer belongs in the background."""
    lifetime_seconds: float = field(default=300, metadata=ABOVE_ZERO)
    """How long a place may stand unused before it is given back. One with a running command, or a process in the
    background, stays."""
    env_passthrough: list[str] = field(default_factory=list)
    """Variables that commands get besides the usual ones (PATH, HOME, LANG …). A full name passes even a secret; a
    pattern like MY_* passes what it matches except what looks like one. Outside this machine nothing else passes."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that commands get with these values, wherever they run."""
    login_shell: bool = True
    """Read the user's profile (~/.profile, ~/.bash_profile, ~/.bashrc) once, when a place is opened."""
    shell_init_files: list[str] = field(default_factory=list)
    """Files with shell commands to read instead of the profile, in this order."""
    orphans: Literal["end", "adopt"] = "end"
    """What happens at the next start to processes that were left running when toolcrib was killed."""
    max_saved_output_mb: int = field(default=64, metadata=AT_LEAST_ONE)
    """How much of the output of one command is kept in a file that the model can read, in megabytes."""
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    """The `sandbox` backend."""
    docker: DockerSettings = field(default_factory=DockerSettings)
    """The `docker` backend."""
    ssh: SshSettings = field(default_factory=SshSettings)
    """The `ssh` backend."""
    singularity: SingularitySettings = field(default_factory=SingularitySettings)
    """The `singularity` backend."""
    modal: ModalSettings = field(default_factory=ModalSettings)
    """The `modal` backend."""
    daytona: DaytonaSettings = field(default_factory=DaytonaSettings)
    """The `daytona` backend."""
    vercel: VercelSettings = field(default_factory=VercelSettings)
    """The `vercel_sandbox` backend."""
