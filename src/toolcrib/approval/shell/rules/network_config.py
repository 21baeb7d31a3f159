"""Changes to the machine's network and firewall."""

from __future__ import annotations

import re

from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand, operands_at_least

DANGERS = (
    DangerClass(
        "network_config",
        "network or firewall change",
        "this host",
        r"\b(?:iptables|ufw|nft)\b.*(?:-F|disable|flush|reset)|\bip\s+link\s+set\b",
        "iptables -F",
    ),
)

IPTABLES_READS = ("-L", "-S", "--list", "--list-rules", "-C", "--check", "-V", "-h", "-n", "-v")
LOOKS = ("list", "show", "ls", "get", "info", "status", "monitor", "-l", "help")


def changes_firewall(call: CommandCall) -> bool:
    return bool(call.words) and not any(
        word.text in IPTABLES_READS or re.fullmatch(r"-[nvx]*[LS][nvx]*", word.text) for word in call.words
    )


def changes_network(call: CommandCall) -> bool:
    texts = [word.text for word in call.words]
    return any(
        text in ("set", "add", "del", "delete", "flush", "change", "replace", "append", "prepend", "change_")
        for text in texts
    )


RULES = (
    Rule(
        "ufw",
        "disable|enable|reset|delete|allow|deny|reject|limit|default|insert|reload|route",
        reason="changes the firewall",
        unless="--dry-run",
        yes="ufw disable",
        no="ufw status",
    ),
    Rule(
        "iptables ip6tables ebtables arptables",
        reason="changes the firewall",
        where=changes_firewall,
        yes="iptables -F",
        no="iptables -L -n",
    ),
    Rule(
        "iptables-restore ip6tables-restore ipset",
        reason="changes the firewall",
        where=lambda call: not any(w.text in ("list", "-L", "save", "test") for w in call.words),
        yes="iptables-restore rules.v4",
        no="ipset list",
    ),
    Rule(
        "nft",
        reason="changes the firewall",
        where=lambda call: any(
            w.text in ("add", "delete", "flush", "insert", "create", "replace", "-f", "reset", "destroy")
            for w in call.words
        ),
        yes="nft flush ruleset",
        no="nft list ruleset",
    ),
    Rule(
        "firewall-cmd",
        reason="changes the firewall",
        where=lambda call: any(
            re.match(
                r"--(?:add|remove|set|change|panic-on|reload|complete-reload|new|delete|permanent$|runtime-to)", w.text
            )
            for w in call.words
        ),
        yes="firewall-cmd --add-port=80/tcp",
        no="firewall-cmd --list-all",
    ),
    Rule("pfctl", reason="changes the firewall", flags="-d -F -f -e", yes="pfctl -d", no="pfctl -s rules"),
    Rule("ip", reason="changes the network", where=changes_network, yes="ip link set eth0 down", no="ip addr show"),
    Rule(
        "ifconfig",
        reason="changes the network",
        where=operands_at_least(2),
        yes="ifconfig eth0 down",
        no="ifconfig eth0",
    ),
    Rule(
        "route",
        reason="changes the network",
        where=operand(lambda text: text in ("add", "del", "delete", "flush", "change")),
        yes="route del default",
        no="route -n",
    ),
    Rule(
        "ifdown ifup dhclient wpa_supplicant rfkill nmtui",
        reason="changes the network",
        where=lambda call: not any(w.text in LOOKS for w in call.words),
        yes="ifdown eth0",
        no="rfkill list",
    ),
    Rule(
        "nmcli",
        reason="changes the network",
        where=lambda call: any(
            w.text in ("down", "delete", "off", "modify", "up", "add", "disconnect", "mod", "del") for w in call.words
        ),
        yes="nmcli con down x",
        no="nmcli dev status",
    ),
    Rule(
        "tc",
        "qdisc|class|filter add|del|delete|replace|change",
        reason="changes the network",
        yes="tc qdisc add dev eth0 root netem delay 1s",
        no="tc qdisc show",
    ),
    Rule(
        "networksetup scutil_ netsh",
        reason="changes the network",
        where=lambda call: any(re.match(r"-?set|-?remove|-?add|interface|advfirewall", w.text) for w in call.words),
        yes="networksetup -setdnsservers Wi-Fi 1.1.1.1",
        no="networksetup -listallnetworkservices",
    ),
    Rule(
        "resolvectl systemd-resolve",
        "dns|domain|revert|flush-caches_|dnssec",
        reason="changes the network",
        where=operands_at_least(3),
        yes="resolvectl dns eth0 1.1.1.1",
        no="resolvectl status",
    ),
    Rule(
        "tailscale wg-quick wg zerotier-cli openvpn",
        reason="changes the network",
        where=lambda call: any(
            w.text in ("up", "down", "logout", "set", "leave", "join", "funnel", "serve") for w in call.words
        ),
        yes="tailscale down",
        no="tailscale status",
    ),
)
