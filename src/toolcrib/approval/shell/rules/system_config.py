"""Changes to the system configuration: users, firewall, kernel, mounts, schedules."""

from __future__ import annotations

import re
from itertools import pairwise

from toolcrib.approval.shell.option_table import GIT_SETTING
from toolcrib.approval.shell.paths import place, resolve
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand, operands_at_least
from toolcrib.core.git_metadata import git_setting

DANGERS = (
    DangerClass(
        "system_config",
        "system configuration change",
        "this host",
        r"(?:>|\btee\b|\bcp\b|\bmv\b).*/etc/|\buseradd\b|\bcrontab\s+-r",
        "echo x > /etc/hosts",
    ),
)

LOOKS = ("list", "show", "ls", "get", "info", "status", "monitor", "-l", "help")


def changes_schedule(call: CommandCall) -> bool:
    """`crontab file`, `crontab -`, `-r` and `-e` change it; `-l` shows it."""
    return not call.arguments.has("-l") and (bool(call.words) or call.stdin is not None)


def remounts(call: CommandCall) -> bool:
    operands = call.arguments.operands
    return bool(operands) or call.arguments.has("-a", "--all", "-o", "--options", "--bind", "--move")


GIT_LOOKS = frozenset(
    ("--get", "--list", "-l", "--get-all", "--get-regexp", "get", "list", "--show-origin", "--unset", "unset")
)


def sets_dangerous_git(call: CommandCall) -> bool:
    """`git config` with a key that makes git run a command or load a file, now or later."""
    texts = [word.text for word in call.words]
    if "config" not in [each.text for each in call.arguments.operands[:1]] or any(text in GIT_LOOKS for text in texts):
        return False
    keys = [text.lower() for text in texts if "." in text[1:]]
    if "store" in texts[-1].split() and any(CHOSEN.match(key) and key.endswith("helper") for key in keys):
        # It keeps passwords in a file that everything can read.
        return True
    if PLAIN_CHOICE.fullmatch(texts[-1]) and any(CHOSEN.match(key) for key in keys):
        return False
    named = any(GIT_SETTING.runs.match(key) or GIT_SETTING.loads.match(key) or GIT_DIVERTS.match(key) for key in keys)
    named = named or any(git_setting(name, value).starts_program for name, value in pairwise(texts))
    return named and len([t for t in texts if not t.startswith("-")]) > 2 and not_a_plain_alias(texts)


CHOSEN = re.compile(r"core\.(?:editor|pager)$|credential\.(?:.+\.)?helper$|sequence\.editor$|pager\.|web\.browser$")
PLAIN_CHOICE = re.compile(r"(?!(?:ba|z|da)?sh$|python|perl|ruby|node|php|source)[\w-]+(?: --?[\w-]+)*")
"""A program by its plain name, which everybody chooses once."""
GIT_DIVERTS = re.compile(r"url\..*insteadof|http\.(?:.*\.)?(?:sslverify|proxy)$|protocol\.(?:.*\.)?allow$")
"""Settings that send git elsewhere, or make it trust what it finds there."""


def not_a_plain_alias(texts: list[str]) -> bool:
    aliases = [number for number, text in enumerate(texts) if text.lower().startswith("alias.")]
    return not aliases or any(text.startswith("!") for text in texts)


def serves_everything(call: CommandCall) -> bool:
    serving = call.program not in ("php", "npx", "caddy", "git") or any(
        word.text in ("-S", "serve", "http-server", "file-server", "live-server", "daemon") for word in call.words
    )
    served = [word.text.partition("=")[2] or word.text for word in call.words] if serving else []
    return any(text and place(resolve(text, call.state), call.state) in ("home", "root", "secret") for text in served)


BUS_LOOKS = re.compile(r"(?:.*\.)?(?:Get\w*|List\w*|Introspect|Ping|Can\w+|Is\w+|Has\w+|Inhibit|Notify)$")
BUS_METHOD = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w+$")
BUS_OWNERS = re.compile(
    r"(?:--dest[= ]?)?org\.(?:freedesktop\.(?:systemd1|login1|PackageKit|PolicyKit1|UDisks2?|Accounts"
    r"|hostname1|timedate1"
    r"|NetworkManager|Flatpak|portal\.\w+|impl\.\w+|secrets)|gnome\.(?:Shell|Terminal|SessionManager)|kde\.\w+|bluez)"
)


def changes_by_bus(call: CommandCall) -> bool:
    """A method call that makes a service of the system do something."""
    words = [word.text for word in call.words]
    if not any(BUS_OWNERS.match(word) for word in words):
        return False
    called = "call" in words or "--method" in words or call.program in ("dbus-send", "qdbus")
    methods = [word for word in words if BUS_METHOD.match(word) and not BUS_OWNERS.fullmatch(word)]
    return called and bool(methods) and not all(BUS_LOOKS.match(word) for word in methods[-1:])


def sets_what_runs(call: CommandCall) -> bool:
    """`npm config set script-shell …`: a setting that runs a program, or takes packages from elsewhere."""
    return any(
        re.match(
            r"(?:script-shell|shell|git|editor|node-options|onload-script|init-module|prefix|yarnPath|plugins|initScope"
            r"|globalFolder|yarn-path|httpProxy|httpsProxy|https?-proxy|proxy)(?:[=.\[]|$)",
            word.text,
        )
        or re.match(
            r"(?:.*[.:])?(?:registry|index-url|extra-index-url|trusted-host|find-links|npmRegistryServer)(?:=|$)",
            word.text,
        )
        for word in call.words
    )


SHELL_NAME = re.compile(r"(?:/\S*/)?(?:(?:ba|z|da|k|c|tc|fi|a)?sh|su)$")
CONSOLE = re.compile(r"(?:/\S*/)?(?:i?python[\d.]*|node|irb|perl|lua|php|vim?|nvim|emacs|ghci|tclsh)$")
"""Programs that run what is typed, or start a shell from a menu."""
PASSES_ON = ("--", "env", "nohup", "nice", "setsid", "time", "command", "exec", "stdbuf")
NAMES_FIRST = ("gosu", "su-exec", "chroot")
"""Wrappers whose first word is a user or a folder."""


def opens_shell(call: CommandCall) -> bool:
    """A shell without a command in it, as somebody else: what is typed there is not seen."""
    arguments = call.arguments
    words = [each.text for each in arguments.operands]
    if call.program == "runuser" and not arguments.has("-u", "--user"):
        return not arguments.has("-c", "--command", "--session-command", "-h", "--help", "-V")
    if call.program in NAMES_FIRST:
        if not words:
            return False
        words = words[1:] or ["sh"]
    while words and ("=" in words[0] or words[0] in PASSES_ON):
        words = words[1:]
    if not words:
        asked = arguments.has("-s", "-i", "--shell", "--login")
        return (asked and call.program != "setpriv") or (call.program in ("run0", "pkexec") and not call.words)
    if call.program == "systemd-run" and arguments.has("--user", "--uid"):
        return False
    if CONSOLE.match(words[0]):
        return len(words) == 1
    return bool(SHELL_NAME.match(words[0])) and all(re.fullmatch(r"-[ilps]*|--login|--norc|root", w) for w in words[1:])


RULES = (
    Rule(
        "augtool",
        reason="changes settings of the system",
        where=lambda call: (
            any(word.text in ("set", "setm", "rm", "mv", "ins", "save", "load-file") for word in call.words)
            or "save" in ((call.stdin.text or "save") if call.stdin is not None else "")
        ),
        key="system_config",
        yes="augtool set /files/etc/hosts/1 x",
        no="augtool print /files/etc/hosts",
    ),
    Rule(
        "kitty kitten wezterm zellij",
        reason="types into another terminal",
        where=lambda call: any(
            word.text in ("send-text", "send-key", "write-chars", "write", "launch") for word in call.words[:4]
        ),
        yes="kitty @ send-text y",
        no="wezterm cli list",
    ),
    Rule(
        "xdotool ydotool wtype dotool",
        reason="types into other programs",
        where=lambda call: any(word.text in ("type", "key", "keydown", "exec", "-k", "-M") for word in call.words),
        yes="xdotool type x",
        no="xdotool getactivewindow",
    ),
    Rule(
        "dmsetup",
        "create|remove|remove_all|load|reload|suspend|wipe_table|message",
        reason="changes how disks are mapped",
        yes="dmsetup create x",
        no="dmsetup ls",
    ),
    Rule(
        "run-parts",
        reason="runs every program in a folder",
        unless="--test --list",
        where=operands_at_least(1),
        key="unknown_code",
        yes="run-parts /tmp/d",
        no="run-parts --test /etc/cron.daily",
    ),
    Rule(
        "service",
        reason="runs a program by a path",
        where=operand(lambda text: "/" in text and ".." in text),
        key="unknown_code",
        yes="service ../../bin/x",
        no="service nginx status",
    ),
    Rule(
        "php serve http-server live-server miniserve darkhttpd httpd thttpd webfsd caddy npx git",
        reason="serves the home folder or the whole disk to the network",
        where=serves_everything,
        key="exfiltration",
        yes="php -S 0.0.0.0:80 -t ~",
        no="php -S localhost:8000 -t public",
    ),
    Rule(
        "dbus-send gdbus busctl qdbus",
        reason="makes a service of the system do something",
        where=changes_by_bus,
        yes="gdbus call --session --dest org.freedesktop.systemd1 --object-path /o --method x.Manager.StartUnit a b",
        no="busctl --user list",
    ),
    Rule(
        "direnv",
        "allow|permit|grant",
        reason="lets a file of commands run whenever someone enters the folder",
        yes="direnv allow .",
        no="direnv status",
    ),
    Rule(
        "npm pnpm",
        "set",
        reason="changes where packages come from, or what runs with them",
        where=sets_what_runs,
        yes="npm set registry http://x.example",
        no="npm set fund false",
    ),
    Rule(
        "git",
        "maintenance start|register",
        reason="changes what runs on a schedule",
        yes="git maintenance start",
        no="git maintenance run",
    ),
    Rule(
        "git hg svn bzr brz",
        reason="passes options to ssh in an address",
        where=operand(lambda text: re.search(r"://-|^-o.*ProxyCommand|^[\w.]*@?-o\w+=", text)),
        key="unknown_code",
        yes="bzr branch bzr+ssh://-oProxyCommand=x/y",
        no="git clone ssh://git@x.example/y",
    ),
    Rule(
        "loginctl",
        "enable-linger|terminate-user|terminate-session|kill-user|kill-session|attach",
        reason="changes what runs for a user",
        yes="loginctl enable-linger",
        no="loginctl list-sessions",
    ),
    Rule(
        "npm pnpm yarn pip pip3 uv",
        "config|c set",
        reason="changes where packages come from, or what runs with them",
        where=sets_what_runs,
        unless="--help",
        yes="npm config set script-shell /tmp/x",
        no="npm config set fund false",
    ),
    Rule(
        "useradd userdel usermod groupadd groupdel groupmod adduser deluser addgroup delgroup "
        "newusers pwck_ vipw vigr gpasswd chpasswd dscl_ sysadminctl pw",
        reason="changes the system's users",
        where=operands_at_least(0),
        yes="useradd bob",
        no="useradd --help",
    ),
    Rule("passwd", reason="changes a password", unless="-S --status", yes="passwd root", no="passwd -S"),
    Rule("chage", reason="changes password expiry", unless="-l --list", yes="chage -E 0 bob", no="chage -l bob"),
    Rule("chsh chfn", reason="changes an account", unless="-l --list-shells", yes="chsh -s /bin/zsh bob", no="chsh -l"),
    Rule(
        "visudo",
        reason="changes who may become root",
        unless="-c --check -V",
        yes="visudo -f /etc/sudoers.d/x",
        no="visudo -c",
    ),
    Rule("sudoedit", reason="edits a file as root", yes="sudoedit /etc/hosts", no="sudoedit --help"),
    Rule(
        "sudo",
        reason="edits a file as root",
        flags="-e --edit",
        where=operands_at_least(1),
        yes="sudo -e /etc/hosts",
        no="sudo -l",
    ),
    Rule(
        "sudo",
        reason="reads the sudo password from its input or a helper",
        flags="-S --stdin -A --askpass",
        yes="echo pw | sudo -S ls",
        no="sudo ls",
    ),
    Rule(
        "sudo doas run0 pkexec gosu su-exec setpriv chroot runuser systemd-run",
        reason="opens a shell as root or another user",
        where=opens_shell,
        yes="doas -s",
        no="sudo -l",
    ),
    Rule(
        "newgrp",
        reason="opens a shell as root or another user",
        where=operands_at_least(1),
        yes="newgrp docker",
        no="newgrp --help",
    ),
    Rule(
        "machinectl",
        "shell|login",
        reason="opens a shell as root or another user",
        where=lambda call: len(call.arguments.operands) < 3,
        yes="machinectl shell root@.host",
        no="machinectl list",
    ),
    Rule(
        "su",
        reason="becomes another user",
        where=lambda call: not call.arguments.has("-c", "--command", "--session-command"),
        yes="su - root",
        no="su -c 'ls' bob",
    ),
    Rule(
        "sysctl",
        reason="changes a kernel setting",
        flags="-w --write -p --load --system",
        yes="sysctl -w vm.swappiness=1",
        no="sysctl vm.swappiness",
    ),
    Rule(
        "sysctl",
        reason="changes a kernel setting",
        where=operand(lambda text: "=" in text),
        yes="sysctl kernel.panic=1",
        no="sysctl -a",
    ),
    Rule("mount", reason="changes what is mounted", where=remounts, yes="mount -o remount,rw /", no="mount"),
    Rule(
        "umount swapoff swapon fusermount",
        reason="changes what is mounted",
        where=lambda call: bool(call.words) and not call.arguments.has("--show", "-s", "-V"),
        yes="umount -a",
        no="swapon --show",
    ),
    Rule(
        "losetup",
        reason="detaches a disk image",
        flags="-d --detach -D --detach-all",
        yes="losetup -D",
        no="losetup -a",
    ),
    Rule(
        "modprobe insmod rmmod kmod depmod",
        reason="changes kernel modules",
        unless="-n --dry-run --show --show-depends -D -c --showconfig -V",
        where=lambda call: not (call.words and call.words[0].text in ("list", "static-nodes")),
        yes="rmmod nvme",
        no="modprobe -n x",
    ),
    Rule("setenforce", reason="changes the system's security settings", yes="setenforce 0", no="setenforce --help"),
    Rule(
        "semanage setsebool restorecon chcon aa-disable aa-complain aa-teardown apparmor_parser semodule",
        reason="changes the system's security settings",
        where=lambda call: not any(w.text in ("-l", "--list", "list") for w in call.words),
        yes="setsebool -P x on",
        no="semanage port -l",
    ),
    Rule(
        "auditctl",
        reason="changes what the system audits",
        flags="-D -e -d -a -w -W",
        yes="auditctl -e 0",
        no="auditctl -l",
    ),
    Rule(
        "timedatectl",
        "set-time|set-timezone|set-ntp|set-local-rtc",
        reason="changes the clock",
        yes="timedatectl set-ntp false",
        no="timedatectl status",
    ),
    Rule("date", reason="changes the clock", flags="-s --set", yes="date -s 2020-01-01", no="date +%F"),
    Rule(
        "hwclock",
        reason="changes the clock",
        flags="-w --systohc -s --hctosys --set",
        yes="hwclock -w",
        no="hwclock -r",
    ),
    Rule(
        "hostnamectl",
        "set-hostname|hostname",
        reason="changes the host name",
        where=operands_at_least(2),
        yes="hostnamectl set-hostname x",
        no="hostnamectl status",
    ),
    Rule("hostname", reason="changes the host name", where=operands_at_least(1), yes="hostname evil", no="hostname -f"),
    Rule(
        "localectl",
        "set-locale|set-keymap|set-x11-keymap",
        reason="changes the system's language",
        yes="localectl set-locale C",
        no="localectl status",
    ),
    Rule(
        "update-alternatives alternatives",
        reason="changes which program a name runs",
        where=lambda call: any(
            w.text in ("--install", "--set", "--remove", "--config", "--remove-all", "--auto") for w in call.words
        ),
        yes="update-alternatives --set editor /bin/x",
        no="update-alternatives --list editor",
    ),
    Rule(
        "update-grub grub-install grub-mkconfig grub2-mkconfig grub2-install update-initramfs "
        "mkinitcpio dracut lilo bootctl update-ca-certificates update-ca-trust ldconfig "
        "dpkg-reconfigure authconfig pam-auth-update locale-gen",
        reason="changes how the system boots or is configured",
        where=lambda call: not any(w.text in (*LOOKS, "-p", "--print-cache") for w in call.words),
        yes="update-grub",
        no="bootctl status",
    ),
    Rule(
        "crontab", reason="changes what runs on a schedule", where=changes_schedule, yes="crontab -r", no="crontab -l"
    ),
    Rule("atrm", reason="removes a scheduled job", yes="atrm 3", no="atrm --help"),
    Rule(
        "defaults",
        "write|delete|import|rename",
        reason="changes the system's settings",
        yes="defaults write x y z",
        no="defaults read x",
    ),
    Rule(
        "gsettings dconf",
        "set|reset|reset-recursively|write|load",
        reason="changes the desktop's settings",
        yes="gsettings set a b c",
        no="gsettings get a b",
    ),
    Rule(
        "xattr",
        reason="takes away the mark of a download that the system checks",
        where=lambda call: (
            "com.apple.quarantine" in [w.text for w in call.words] and "-p" not in [w.text for w in call.words]
        ),
        yes="xattr -d com.apple.quarantine x.app",
        no="xattr -p com.apple.quarantine x.app",
    ),
    Rule(
        "csrutil spctl pmset systemsetup nvram fdesetup tccutil bless kextload kextunload",
        reason="changes the system's security settings",
        where=lambda call: (
            bool(call.words) and not any(w.text in ("status", "-g", "list", "--status", "-p") for w in call.words)
        ),
        yes="csrutil disable",
        no="csrutil status",
    ),
    Rule(
        "reg",
        "add|delete|import|restore",
        reason="changes the registry",
        yes="reg delete HKLM\\\\x",
        no="reg query HKLM",
    ),
    Rule(
        "bcdedit vssadmin wbadmin schtasks cipher",
        reason="changes how Windows starts, or deletes its backups",
        where=lambda call: any(
            re.match(r"(?i)/(?:set|delete|create|change|w:)|delete|resize", w.text) for w in call.words
        ),
        yes="vssadmin delete shadows /all",
        no="vssadmin list shadows",
    ),
    Rule(
        "git",
        reason="changes what git runs",
        where=sets_dangerous_git,
        yes="git config --global core.hooksPath /tmp/h",
        no="git config user.name x",
    ),
    Rule(
        "git",
        "config",
        reason="changes git for the whole system",
        flags="--system",
        where=lambda call: not call.arguments.has("--get", "--list", "-l"),
        yes="git config --system x y",
        no="git config --list",
    ),
    Rule(
        "xdg-mime xdg-settings duti",
        "default|install|set|uninstall",
        reason="changes which program opens things",
        yes="xdg-mime default x.desktop text/html",
        no="xdg-mime query default text/html",
    ),
    Rule(
        "vim vi nvim gvim",
        reason="types commands into a running editor",
        where=lambda call: any(word.text in ("--remote-send", "--remote-expr") for word in call.words),
        key="unknown_code",
        yes="nvim --server s --remote-send ':q'",
        no="nvim --server s --remote x.txt",
    ),
    Rule("history", reason="deletes the command history", flags="-c -d -w", yes="history -c", no="history 5"),
    Rule(
        "history",
        "*",
        reason="writes the command history to a file",
        flags="-a",
        yes="history -a ~/.bashrc",
        no="history -a",
    ),
    Rule(
        "journalctl",
        reason="deletes logs",
        where=lambda call: any(re.match(r"--(?:vacuum|rotate|flush)", w.text) for w in call.words),
        yes="journalctl --vacuum-time=1s",
        no="journalctl -u x",
    ),
    Rule("dmesg", reason="clears the kernel's log", flags="-C --clear -c --read-clear", yes="dmesg -C", no="dmesg -T"),
    Rule(
        "logrotate",
        reason="forces log rotation",
        flags="-f --force",
        yes="logrotate -f /etc/logrotate.conf",
        no="logrotate -d x.conf",
    ),
    Rule(
        "ulimit_ prlimit_ renice",
        reason="changes the priority of running processes",
        where=lambda call: any(w.text in ("-u", "-g", "--user", "--pgrp") for w in call.words),
        yes="renice -n -20 -u bob",
        no="renice -n 5 -p 4711",
    ),
    Rule(
        "ssh-keygen", reason="changes the system's keys", flags="-A", yes="ssh-keygen -A", no="ssh-keygen -l -f k.pub"
    ),
    Rule(
        "ssh-copy-id",
        reason="lets a key log in on another host",
        where=operands_at_least(1),
        yes="ssh-copy-id host",
        no="ssh-copy-id --help",
    ),
    Rule(
        "loadkeys setfont stty_ openvt chvt",
        reason="changes the console",
        where=operands_at_least(1),
        yes="chvt 1",
        no="chvt --help",
    ),
    Rule(
        "ldapmodify ldapdelete ldapadd samba-tool kadmin kadmin.local",
        reason="changes a user directory",
        where=lambda call: bool(call.words),
        yes="ldapdelete cn=x",
        no="ldapdelete --help",
    ),
    Rule(
        "a2ensite a2dissite a2enmod a2dismod",
        reason="changes the web server",
        where=operands_at_least(1),
        yes="a2dissite x",
        no="a2dissite --help",
    ),
    Rule(
        "certbot",
        "revoke|delete|renew|unregister",
        reason="changes certificates",
        unless="--dry-run",
        yes="certbot delete --cert-name x",
        no="certbot certificates",
    ),
    Rule(
        "docker",
        "context|config rm|remove",
        reason="changes docker's configuration",
        key="container",
        yes="docker config rm x",
        no="docker context ls",
    ),
)
