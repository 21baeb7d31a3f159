"""Where and how commands run: the `terminal` section, and one section for each backend that has settings.

As in `settings`, annotations are real objects, and the text under each field is its entry in the reference docs.
"""

from typing import Literal

from msgspec import field

from toolcrib.config.section import NonNegativeFloat, NonNegativeInt, Port, PositiveFloat, PositiveInt, Section

DEFAULT_IMAGE = "nikolaik/python-nodejs:python3.11-nodejs20"


class SandboxSettings(Section, frozen=True, kw_only=True):
    """The `sandbox` backend: this machine, with access to only parts of it."""

    use: Literal["auto", "bubblewrap", "landlock"] = "auto"
    """The sandbox mechanism; `auto` means bubblewrap if it works, else Landlock."""
    network: bool = False
    """Let commands use the network."""
    writable: list[str] = field(default_factory=list)
    """Folders that commands may write to, besides the one they start in."""
    readable: list[str] = field(default_factory=list)
    """Folders that commands may read besides the system's, for example one in your home."""


class DockerSettings(Section, frozen=True, kw_only=True):
    """The `docker` backend: a container for each task, with Docker or Podman."""

    engine: Literal["auto", "docker", "podman"] = "auto"
    """The program that runs containers; `auto` means docker if it works, else podman."""
    image: str = DEFAULT_IMAGE
    """The image for containers; it must contain bash."""
    volumes: list[str] = field(default_factory=list)
    """Folders of this machine that containers see, as HOST:CONTAINER, or HOST:CONTAINER:ro to only read."""
    mount_cwd: bool = False
    """Mount the folder that toolcrib was started in as /workspace, and start commands there."""
    run_as_host_user: Literal["auto", "on", "off"] = "auto"
    """Run as your own user, so that files in mounts stay yours; `auto` does so if something is mounted."""
    network: bool = True
    """Let containers use the network."""
    cpus: NonNegativeFloat = 1
    """How many processors one container may use; 0 means no limit."""
    memory_mb: NonNegativeInt = 5120
    """How much memory one container may use, in megabytes; 0 means no limit."""
    pids: NonNegativeInt = 256
    """How many processes one container may hold; 0 means no limit."""
    disk_mb: NonNegativeInt = 0
    """How much one container may write, in megabytes, if the engine's storage supports it; 0 means no limit."""
    persistent: bool = False
    """Keep a session's container when it is released, and reuse it the next time."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables only for commands in containers, besides `terminal.env`."""
    env_passthrough: list[str] = field(default_factory=list)
    """Variables of this machine only for commands in containers, besides `terminal.env_passthrough`."""
    extra_args: list[str] = field(default_factory=list)
    """More arguments for `docker run`, each as a separate item."""


class SshSettings(Section, frozen=True, kw_only=True):
    """The `ssh` backend: another machine."""

    host: str = ""
    """The machine to log in to, by name, address or the name of an entry in your ssh config."""
    user: str = ""
    """The user to log in as; empty means what your ssh config says, else your own name."""
    port: Port = 0
    """The port of sshd; 0 means what your ssh config says, else 22."""
    key: str = ""
    """The file with your private key; empty means your agent and the usual files."""
    known_hosts: str = ""
    """The file with the keys of known machines; empty means what your ssh config says, else ~/.ssh/known_hosts."""
    accept_new_host_keys: bool = True
    """Trust an unknown machine and remember its key; a machine whose key changed is always rejected."""


class SingularitySettings(Section, frozen=True, kw_only=True):
    """The `singularity` backend: a container for each task, with Apptainer or Singularity."""

    image: str = f"docker://{DEFAULT_IMAGE}"
    """A .sif file, a folder with a root file system, or an address such as docker://NAME."""
    overlay: str = ""
    """A folder that keeps what commands change; empty means that changes are discarded."""
    binds: list[str] = field(default_factory=list)
    """Folders of this machine that containers see, as HOST:CONTAINER, or HOST:CONTAINER:ro to only read."""
    network: bool = True
    """Let containers use the network."""
    cpus: NonNegativeFloat = 0
    """How many processors one container may use; 0 means no limit."""
    memory_mb: NonNegativeInt = 0
    """How much memory one container may use, in megabytes; 0 means no limit."""
    pids: NonNegativeInt = 256
    """How many processes one container may hold; 0 means no limit."""
    extra_args: list[str] = field(default_factory=list)
    """More arguments for `apptainer instance start`, each as a separate item."""


class ModalSettings(Section, frozen=True, kw_only=True):
    """The `modal` backend: sandboxes in Modal's cloud."""

    image: str = DEFAULT_IMAGE
    """The image that sandboxes are made from, by its name in a registry; bash must be in it."""
    app: str = "toolcrib"
    """The app in your account that sandboxes belong to; created if missing."""
    max_lifetime_seconds: PositiveInt = 14_400
    """After how many seconds Modal ends a sandbox by itself, whatever happens here."""
    cpus: NonNegativeFloat = 0
    """How many processors one sandbox gets; 0 means Modal's default."""
    memory_mb: NonNegativeInt = 0
    """How much memory one sandbox gets, in megabytes; 0 means Modal's default."""
    network: bool = True
    """Let sandboxes use the network."""


class DaytonaSettings(Section, frozen=True, kw_only=True):
    """The `daytona` backend: sandboxes in Daytona's cloud."""

    image: str = DEFAULT_IMAGE
    """The image that sandboxes are made from, by its name in a registry; bash must be in it."""
    max_lifetime_seconds: PositiveInt = 86_400
    """After how many seconds Daytona deletes a sandbox by itself, whatever happens here."""
    idle_seconds: PositiveInt = 1800
    """After how many idle seconds Daytona deletes a sandbox."""
    cpus: NonNegativeInt = 0
    """How many processors one sandbox gets; 0 means Daytona's default."""
    memory_mb: NonNegativeInt = 0
    """How much memory one sandbox gets, in megabytes; 0 means Daytona's default."""
    disk_mb: NonNegativeInt = 0
    """How large its disk is, in megabytes; 0 means Daytona's default."""
    network: bool = True
    """Let sandboxes use the network."""


class VercelSettings(Section, frozen=True, kw_only=True):
    """The `vercel_sandbox` backend: sandboxes in Vercel's cloud."""

    image: str = ""
    """An image from Vercel's registry; empty means Vercel's default."""
    max_lifetime_seconds: PositiveInt = 2700
    """After how many seconds Vercel ends a sandbox, whatever happens here; more than 2700 needs a paid plan."""
    cpus: NonNegativeInt = 0
    """How many processors one sandbox gets; 0 means Vercel's default."""
    memory_mb: NonNegativeInt = 0
    """How much memory one sandbox gets, in megabytes; 0 means Vercel's default."""
    network: bool = True
    """Let sandboxes use the network."""


class TerminalSettings(Section, frozen=True, kw_only=True):
    """Where and how commands run."""

    backend: str = "local"
    """`local`, `sandbox`, `docker`, `ssh`, `singularity`, `modal`, `daytona`, `vercel_sandbox`, or the name of one that
    you installed. `toolcrib env list` says which of them work here."""
    cwd: str = ""
    """The folder that commands start in; empty or `.` means the one that toolcrib was started in, and the usual one on
    other machines and in containers."""
    timeout: PositiveFloat = 180
    """How many seconds a command may take if the model does not say."""
    max_foreground_timeout: PositiveFloat = 600
    """The most seconds that the model may request; anything longer belongs in the background."""
    lifetime_seconds: PositiveFloat = 300
    """How many seconds an environment may be idle before it is closed. One with a running command or background
    process stays open."""
    env_passthrough: list[str] = field(default_factory=list)
    """Variables that commands get besides the usual ones (PATH, HOME, LANG …). A full name passes even a secret; a
    pattern like MY_* passes what it matches except what looks like one. Outside this machine nothing else passes."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that commands get with these values, wherever they run."""
    login_shell: bool = True
    """Read your profile (~/.profile, ~/.bash_profile, ~/.bashrc) once, when an environment opens."""
    shell_init_files: list[str] = field(default_factory=list)
    """Files with shell commands to read instead of the profile, in this order."""
    orphans: Literal["end", "adopt"] = "end"
    """What to do, at the next start, with processes that were left running when toolcrib was killed."""
    max_saved_output_mb: PositiveInt = 64
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
