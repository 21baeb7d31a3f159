"""Where the commands of a fault test run, and how the test looks inside without anything of ours."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.environments import engines

LOOK_SECONDS = 60
# The marks arrive on standard input: in the arguments of this very program they would be found as well.
FIND_MARKED = r"""
mapfile -t marks
for process in /proc/[0-9]*; do
    [[ $process != "/proc/$$" ]] || continue
    text=$({ tr '\0' '\n' <"$process/environ"; tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null)
    for mark in "${marks[@]}"; do
        [[ $text != *"$mark"* ]] || { tr '\0' ' ' <"$process/cmdline" 2>/dev/null; echo "(${process#/proc/})"; break; }
    done
done
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A backend in a fault test."""

    settings: Mapping[str, Any]
    """The section `terminal` of the config."""
    shared: Path
    """A folder of this machine that commands can write to."""
    shared_inside: str
    """The same folder, as commands see it."""
    reach: Sequence[str] = ()
    """What to put before a program to run it there; empty on this machine."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What our process needs in its environment to get there."""

    def bash(self, script: str, typed: str = "") -> str:
        """What a script prints there."""
        program = ["bash", "-c", script]
        if self.reach and self.reach[0] == "ssh":
            program = [shlex.join(program)]
        done = subprocess.run(
            [*self.reach, *program],
            input=typed,
            capture_output=True,
            text=True,
            env={**os.environ, **self.environ},
            timeout=LOOK_SECONDS,
            check=False,
        )
        return done.stdout

    def marked(self, marks: Sequence[str]) -> list[str]:
        """The processes there that have one of the marks in their environment or arguments."""
        return self.bash(FIND_MARKED, "\n".join(marks) + "\n").splitlines()

    def there(self, addresses: Sequence[Mapping[str, str]]) -> list[str]:
        """Which of these places still have something of ours: a folder."""
        folders = [address["folder"] for address in addresses]
        return self.bash('while read -r folder; do [ ! -e "$folder" ] || echo "$folder"; done', _lines(folders)).split()

    def exit_files(self, addresses: Sequence[Mapping[str, str]], ids: Sequence[str]) -> int:
        """How many of these commands have put down there how they ended."""
        files = [f"{address['folder']}/{name}.exit" for address in addresses for name in ids]
        return len(self.bash('while read -r file; do [ ! -s "$file" ] || echo 1; done', _lines(files)).split())


class Containers(Place):
    """Each place is a container of its own, whose processes can be seen from inside alone."""

    def _docker(self, *arguments: str, typed: str = "") -> str:
        done = subprocess.run(
            ["docker", *arguments],
            input=typed,
            capture_output=True,
            text=True,
            env={**os.environ, **self.environ},
            timeout=LOOK_SECONDS,
            check=False,
        )
        return done.stdout

    def _all(self) -> list[str]:
        return self._docker("ps", "-aq", "--no-trunc", "--filter", f"volume={self.shared}").split()

    def marked(self, marks: Sequence[str]) -> list[str]:
        look = ("bash", "-c", FIND_MARKED)
        inside = [self._docker("exec", "-i", one, *look, typed=_lines(marks)).splitlines() for one in self._all()]
        return [*itertools.chain.from_iterable(inside), *super().marked(marks)]

    def there(self, addresses: Sequence[Mapping[str, str]]) -> list[str]:
        return self._all()

    def exit_files(self, addresses: Sequence[Mapping[str, str]], ids: Sequence[str]) -> int:
        count = 0
        for address in addresses:
            files = " ".join(f"{address['folder']}/{name}.exit" for name in ids)
            script = f'for file in {files}; do [ ! -s "$file" ] || echo 1; done'
            count += len(self._docker("exec", address["container"], "bash", "-c", script).split())
        return count


def _lines(texts: Sequence[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def local(shared: Path) -> Place:
    return Place(settings={"backend": "local"}, shared=shared, shared_inside=str(shared))


def docker(shared: Path, host: str, *, persistent: bool = False) -> Place:
    options = {
        "engine": "docker",
        "image": engines.IMAGE,
        "network": False,
        "volumes": [f"{shared}:/shared"],
        "run_as_host_user": "off",
        "persistent": persistent,
    }
    return Containers(
        settings={"backend": "docker", "docker": options},
        shared=shared,
        shared_inside="/shared",
        environ={"DOCKER_HOST": host},
    )


def ssh(shared: Path, server: engines.SshServer, folder: Path) -> Place:
    options = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "key": str(server.key),
        "known_hosts": str(folder / "known_hosts"),
    }
    known = f"UserKnownHostsFile={server.known_hosts}"
    client = ("ssh", "-T", "-F", "none", "-o", known, "-i", str(server.key), "-p", str(server.port))
    return Place(
        settings={"backend": "ssh", "ssh": options},
        shared=shared,
        shared_inside=str(shared),
        reach=(*client, f"{server.user}@{server.host}"),
    )
