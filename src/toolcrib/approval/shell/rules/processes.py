"""Killing processes and shutting down the machine."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import UNKNOWN, Origin
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand, operands_at_least

DANGERS = (
    DangerClass("kill", "process kill", "this host", r"\bkill\s+-(?:9|KILL)\b|\bpkill\b|\bkillall\b", "pkill -9 node"),
    DangerClass("system_power", "system power", "this host", r"\b(?:shutdown|reboot|halt|poweroff)\b", "sudo reboot"),
    DangerClass("fork_bomb", "fork bomb", "this host", r":\s*\(\s*\)\s*\{\s*:\s*\|\s*:\s*&", ":(){ :|:& };:"),
)


def signal_and_targets(call: CommandCall) -> tuple[str, list[str]]:
    """The signal and the targets of a kill; `-1` alone is a signal, after a signal it means every process."""
    signal, targets = "", list[str]()
    words = [word.text for word in call.words]
    number = 0
    while number < len(words):
        text = words[number]
        if text in ("-s", "--signal", "-n") and number + 1 < len(words):
            signal = words[number + 1]
            number += 1
        elif text.startswith("--signal="):
            signal = text[9:]
        elif text == "--":
            targets += words[number + 1 :]
            break
        elif re.fullmatch(r"-[A-Za-z]+\d*|-\d+", text) and not signal and not targets:
            signal = text[1:]
        else:
            targets.append(text)
        number += 1
    return signal.upper().removeprefix("SIG"), targets


def kills_everything(call: CommandCall) -> bool:
    signal, targets = signal_and_targets(call)
    return "-1" in targets and signal not in ("0", "L")


def kills_others(call: CommandCall) -> bool:
    """PID 1, a whole group, or processes that another command selected."""
    signal, targets = signal_and_targets(call)
    if signal in ("0", "L", "EXIT"):
        return False
    unsure = signal in ("9", "KILL") or picked(call)
    for target in targets:
        if target in ("1", "0") or re.fullmatch(r"-\d+", target):
            return True
        if UNKNOWN in target and unsure:
            return True
    return False


def picked(call: CommandCall) -> bool:
    return any(word.origin & Origin.PROGRAM for word in call.words)


def sends_signal(call: CommandCall) -> bool:
    """pkill and killall act by name; `-0` and listing only look."""
    texts = [word.text for word in call.words]
    return not any(text in ("-0", "-l", "--list", "-L", "--version", "-V", "--signal=0") for text in texts) and bool(
        texts
    )


def powers_off(call: CommandCall) -> bool:
    texts = [word.text for word in call.words]
    return not any(text in ("-c", "--help", "-k", "--wtmp-only", "-w", "--show", "-V", "--version") for text in texts)


RULES = (
    Rule(
        "kill",
        reason="kills every process",
        where=kills_everything,
        severity="block",
        key="kill",
        yes="kill -9 -1",
        no="kill -1 4711",
    ),
    Rule(
        "kill",
        reason="kills processes that may belong to others",
        where=kills_others,
        key="kill",
        yes="kill -9 1",
        no="kill 4711",
    ),
    Rule(
        "killall5",
        reason="kills every process",
        where=lambda call: not any(word.text in ("-0", "-18", "-19") for word in call.words),
        severity="block",
        key="kill",
        yes="killall5 -9",
        no="killall5 --help",
    ),
    Rule(
        "pkill killall skill snice slay",
        reason="kills every process with a name",
        where=sends_signal,
        key="kill",
        yes="pkill -f node",
        no="pkill -0 node",
    ),
    Rule(
        "stress stress-ng",
        reason="loads the machine without an end",
        unless="-t --timeout --help --version -V",
        where=lambda call: bool(call.words),
        key="fork_bomb",
        yes="stress -c 64",
        no="stress-ng --cpu 2 --timeout 10s",
    ),
    Rule(
        "tmux",
        "kill-server",
        reason="ends every session and everything running in it",
        key="kill",
        yes="tmux kill-server",
        no="tmux list-sessions",
    ),
    Rule(
        "tmux",
        "kill-session|kill-window|kill-pane",
        reason="ends all sessions but one and everything running in them",
        flags="-a",
        key="kill",
        yes="tmux kill-session -a",
        no="tmux kill-session -t mine",
    ),
    Rule(
        "zellij",
        "kill-all-sessions|delete-all-sessions|kill-session|delete-session",
        reason="ends sessions and everything running in them",
        key="kill",
        yes="zellij kill-all-sessions",
        no="zellij list-sessions",
    ),
    Rule(
        "screen",
        reason="ends a session and everything running in it",
        where=operand(lambda text: text in ("quit", "kill")),
        flags="-X",
        key="kill",
        yes="screen -S work -X quit",
        no="screen -ls",
    ),
    Rule("xkill", reason="kills the programs behind windows", key="kill", yes="xkill -a", no="xkill --help"),
    Rule(
        "fuser",
        reason="kills the processes that use a file or port",
        flags="-k --kill",
        key="kill",
        yes="fuser -k 8080/tcp",
        no="fuser 8080/tcp",
    ),
    Rule(
        "taskkill tskill",
        reason="kills processes",
        where=lambda call: bool(call.words),
        key="kill",
        yes="taskkill /F /IM node.exe",
        no="taskkill --help",
    ),
    Rule(
        "kill-port fkill killport",
        reason="kills the process that uses a port",
        where=lambda call: bool(call.words),
        key="kill",
        yes="fkill :8080",
        no="fkill --help",
    ),
    Rule(
        "loginctl",
        "terminate-user|terminate-session|kill-user|kill-session|terminate-seat",
        reason="ends a user's session",
        key="kill",
        yes="loginctl terminate-user bob",
        no="loginctl list-sessions",
    ),
    Rule(
        "shutdown reboot halt poweroff",
        reason="shuts down or restarts the machine",
        where=powers_off,
        severity="block",
        key="system_power",
        yes="shutdown -h now",
        no="shutdown -c",
    ),
    Rule(
        "init telinit",
        reason="shuts down or restarts the machine",
        where=operand(lambda text: text in ("0", "6")),
        severity="block",
        key="system_power",
        yes="init 0",
        no="init --version",
    ),
    Rule(
        "init telinit",
        reason="changes the run level",
        where=operand(lambda text: text in ("1", "2", "3", "4", "5", "s", "S")),
        key="system_power",
        yes="init 1",
        no="init --version",
    ),
    Rule(
        "systemctl",
        "poweroff|reboot|halt|kexec|soft-reboot|exit",
        reason="shuts down or restarts the machine",
        severity="block",
        key="system_power",
        yes="systemctl poweroff",
        no="systemctl status",
    ),
    Rule(
        "systemctl",
        "suspend|hibernate|hybrid-sleep|suspend-then-hibernate|rescue|emergency|sleep",
        reason="suspends the machine or takes it out of service",
        key="system_power",
        yes="systemctl suspend",
        no="systemctl status",
    ),
    Rule(
        "systemctl",
        "start|isolate",
        reason="shuts down or restarts the machine",
        where=operand(lambda text: re.fullmatch(r"(?:poweroff|reboot|halt|shutdown|kexec|runlevel[06])\.target", text)),
        severity="block",
        key="system_power",
        yes="systemctl isolate reboot.target",
        no="systemctl status",
    ),
    Rule(
        "loginctl",
        "poweroff|reboot|halt|suspend|hibernate",
        reason="shuts down or restarts the machine",
        severity="block",
        key="system_power",
        yes="loginctl poweroff",
        no="loginctl list-users",
    ),
    Rule(
        "kexec",
        reason="boots another kernel",
        flags="-e --exec",
        severity="block",
        key="system_power",
        yes="kexec -e",
        no="kexec -l /boot/vmlinuz",
    ),
    Rule(
        "pm-suspend pm-hibernate rtcwake s2ram",
        reason="suspends the machine or takes it out of service",
        key="system_power",
        yes="pm-suspend",
        no="rtcwake --help",
    ),
    Rule(
        "dbus-send gdbus busctl qdbus",
        reason="shuts down or restarts the machine",
        where=operand(lambda text: re.search(r"(?:PowerOff|Reboot|Halt|logout|shutdown)$", text)),
        severity="block",
        key="system_power",
        yes="dbus-send --system --dest=org.freedesktop.login1 /x org.freedesktop.login1.Manager.PowerOff",
        no="dbus-send --system x y",
    ),
    Rule(
        "ipmitool",
        "chassis|power power|off|cycle|reset|soft",
        reason="powers off a machine",
        key="system_power",
        yes="ipmitool chassis power off",
        no="ipmitool sensor list",
    ),
    Rule(
        "virsh",
        "destroy|undefine|shutdown|reboot|vol-delete|pool-delete|pool-destroy|snapshot-delete|"
        "net-destroy|snapshot-revert",
        reason="stops or removes a virtual machine",
        key="container",
        yes="virsh destroy vm1",
        no="virsh list",
    ),
    Rule(
        "gnome-session-quit",
        reason="ends the session",
        where=operands_at_least(0),
        key="system_power",
        yes="gnome-session-quit --power-off",
        no="gnome-session-quit --help",
    ),
)
