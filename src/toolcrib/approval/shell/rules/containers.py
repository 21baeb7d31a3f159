"""Removing and stopping containers, images, volumes and container clusters."""

from __future__ import annotations

import re

from toolcrib.approval.shell.options import option_values
from toolcrib.approval.shell.paths import is_protected, resolve
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand

DANGERS = (
    DangerClass(
        "container",
        "container removal or stop",
        "this container engine",
        r"\b(?:docker|podman)\b.*\b(?:rm|rmi|prune|kill|stop|down)\b",
        "docker system prune -af",
    ),
)

ENGINES = "docker podman nerdctl finch"


def composes_down(call: CommandCall) -> bool:
    texts = [each.text for each in call.arguments.operands]
    return call.program.endswith("-compose") or texts[:1] == ["compose"]


def mounts_engine_socket(call: CommandCall) -> bool:
    return any(re.search(r"docker\.sock|containerd\.sock|podman\.sock", word.text) for word in call.words)


def mounts_protected(call: CommandCall) -> bool:
    """True for a container that may write the home folder, or a folder in it that is protected from tools."""
    given = call.arguments.values("-v", "--volume", "--mount")
    given += [word.with_text(word.text.partition("=")[2]) for word in call.words if MOUNT.match(word.text)]
    for word in given:
        if READ_ONLY.search(word.text):
            continue
        source = MOUNT_SOURCE.search(word.text)
        text = source.group(1) if source else word.text.partition(":")[0]
        text = call.state.home + text[1:] if text.startswith("~") else text
        path = resolve(text, call.state) if text[:1] in "/." else ""
        if path and (path in ("/", call.state.home) or is_protected(path, call.state)):
            return True
    return False


OPENS_HOST = re.compile(
    r"--(?:pid|userns|ipc|uts|cgroupns)[= ]host\b"
    r"|--cap-add(?:[= ](?:ALL|(?:CAP_)?(?:SYS_\w+|DAC_READ_SEARCH|NET_RAW|BPF)))?(?: |$)"
    r"|--security-opt[= ]\S*(?:unconfined|disable)"
    r"|--device[= ]/dev/(?:[hsv]d|nvme|mem|kmem|mapper|dm-|disk|loop|fuse|port)"
)
"""Options that take away what separates a container from its host."""
MOUNT = re.compile(r"--(?:volume|mount)=")
MOUNT_SOURCE = re.compile(r"(?:^|,)(?:source|src)=([^,]+)")
READ_ONLY = re.compile(r":(?:\w+,)*ro(?:,|$)|(?:^|,)(?:readonly|ro)(?:=true|=1)?(?:,|$)")

FILES = ("-f", "--file")
ADDRESS = re.compile(r"(?:https?|git|oci)://")


def stops_others(call: CommandCall) -> bool:
    """All containers, those that another command lists, or those of another machine; a named one starts again."""
    elsewhere = call.arguments.has("-a", "--all", "-H", "--host", "--context")
    return elsewhere or any(not each.known for each in call.arguments.operands[1:]) or len(call.arguments.operands) > 4


RULES = (
    Rule(
        "docker podman docker-compose nerdctl",
        reason="starts containers that an address describes",
        where=lambda call: any(ADDRESS.match(value.text) for value in option_values(call.words, FILES)),
        key="remote_code",
        yes="docker compose -f https://x.example/c.yml up",
        no="docker compose -f compose.dev.yml up",
    ),
    Rule(
        "docker podman nerdctl finch",
        "run|create",
        reason="lets a container change the home folder, or files that the user's programs run",
        where=mounts_protected,
        yes="docker run --mount type=bind,src=/home/user,dst=/h alpine",
        no="docker run -v $PWD:/src alpine",
    ),
    Rule(
        "docker podman nerdctl finch",
        "compose down",
        reason="removes a project's volumes or images",
        flags="-v --volumes --rmi",
        unless="--dry-run",
        yes="docker compose down -v",
        no="docker compose down",
    ),
    Rule(
        "docker-compose podman-compose",
        "down",
        reason="removes a project's volumes or images",
        flags="-v --volumes --rmi",
        yes="docker-compose down -v",
        no="docker-compose down",
    ),
    Rule(
        "nsenter",
        reason="enters the namespaces of another process",
        flags="-t --target -a --all",
        yes="nsenter -t 1 -m -u -i -n sh",
        no="nsenter --help",
    ),
    Rule(
        ENGINES,
        "rm|rmi|kill|remove",
        reason="removes or stops containers or images",
        unless="--help",
        yes="docker rm -f web",
        no="docker ps",
    ),
    Rule(
        ENGINES,
        "stop|restart|pause",
        reason="stops containers that may belong to others",
        unless="--help",
        where=stops_others,
        yes="docker stop $(docker ps -q)",
        no="docker stop web",
    ),
    Rule(
        ENGINES,
        "system|image|container|volume|network|builder|buildx|pod|machine|stack|service|node|"
        "secret|config|plugin|images|volumes|manifest "
        "rm|remove|prune|kill|stop|rmi|disable|reset|restart|update|demote",
        reason="removes or stops container resources",
        yes="docker volume rm data",
        no="docker volume ls",
    ),
    Rule(
        ENGINES,
        "swarm leave|init",
        reason="changes the container cluster",
        yes="docker swarm leave --force",
        no="docker swarm --help",
    ),
    Rule(
        ENGINES,
        "service scale",
        reason="changes how many containers run",
        yes="docker service scale web=0",
        no="docker service ls",
    ),
    Rule(
        "docker podman nerdctl finch",
        "compose rm|kill",
        reason="stops or removes a project's containers",
        unless="--dry-run",
        yes="docker compose kill",
        no="docker compose ps",
    ),
    Rule(
        "docker-compose podman-compose",
        "rm|kill",
        reason="stops or removes a project's containers",
        yes="docker-compose kill",
        no="docker-compose ps",
    ),
    Rule(
        "podman",
        "system reset|prune|renumber",
        reason="removes all podman data",
        yes="podman system reset",
        no="podman system df",
    ),
    Rule(
        "docker podman nerdctl",
        "run|create",
        reason="gives a container full access to the host",
        flags="--privileged",
        yes="docker run --privileged alpine",
        no="docker run alpine",
    ),
    Rule(
        "docker podman nerdctl",
        "run|create",
        reason="gives a container control of the container engine",
        where=mounts_engine_socket,
        yes="docker run -v /var/run/docker.sock:/s alpine",
        no="docker run alpine",
    ),
    Rule(
        "docker podman nerdctl",
        "run|create",
        reason="gives a container the host's processes, devices or rights",
        where=lambda call: bool(OPENS_HOST.search(" ".join(word.text for word in call.words[:200]))),
        yes="docker run --pid=host alpine",
        no="docker run alpine",
    ),
    Rule("crictl", "rm|rmi|rmp|stop|stopp", reason="removes or stops containers", yes="crictl rm x", no="crictl ps"),
    Rule(
        "ctr",
        "containers|c|images|i|tasks|t|snapshots rm|remove|delete|del|kill",
        reason="removes containers",
        yes="ctr containers rm x",
        no="ctr containers ls",
    ),
    Rule("buildah", "rm|rmi|prune", reason="removes images", yes="buildah rm -a", no="buildah images"),
    Rule(
        "lxc incus",
        "config|profile device",
        reason="gives a container files or devices of the host",
        where=operand(lambda text: re.match(r"source=/", text)),
        yes="lxc config device add c d disk source=/ path=/h",
        no="lxc config show c",
    ),
    Rule(
        "lxc incus",
        "delete|stop|restore|restart|rebuild",
        reason="removes or stops containers",
        yes="lxc delete -f c1",
        no="lxc list",
    ),
    Rule(
        "lxc-destroy lxc-stop lxc-kill",
        reason="removes or stops containers",
        yes="lxc-destroy -n c1",
        no="lxc-destroy --help",
    ),
    Rule(
        "vagrant",
        "destroy|halt|reload|suspend|box",
        reason="removes or stops virtual machines",
        where=operand(lambda text: text in ("destroy", "halt", "reload", "suspend", "remove", "prune")),
        yes="vagrant destroy -f",
        no="vagrant status",
    ),
    Rule(
        "multipass",
        "delete|purge|stop|restart",
        reason="removes or stops virtual machines",
        yes="multipass delete x",
        no="multipass list",
    ),
    Rule(
        "VBoxManage vboxmanage",
        "unregistervm|controlvm|closemedium|snapshot",
        reason="removes or stops virtual machines",
        yes="VBoxManage unregistervm x --delete",
        no="VBoxManage list vms",
    ),
    Rule(
        "qm pct",
        "destroy|stop|shutdown|reset|rollback|delsnapshot",
        reason="removes or stops virtual machines",
        yes="qm destroy 100",
        no="qm list",
    ),
    Rule(
        "colima limactl orb",
        "delete|stop|prune|restart|reset",
        reason="removes or stops virtual machines",
        yes="colima delete",
        no="colima status",
    ),
    Rule(
        "skopeo regctl crane",
        "delete",
        reason="deletes a published image",
        yes="skopeo delete docker://x/y",
        no="skopeo inspect docker://x/y",
    ),
    Rule("minikube kind k3d", "delete|stop", reason="removes a cluster", yes="minikube delete", no="minikube status"),
    Rule(
        "kind k3d", "cluster delete|stop", reason="removes a cluster", yes="k3d cluster delete x", no="k3d cluster list"
    ),
)
