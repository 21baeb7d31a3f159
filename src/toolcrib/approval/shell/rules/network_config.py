"""Changes to the machine's network and firewall."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import name_set
from toolcrib.approval.shell.options import parse_arguments
from toolcrib.approval.shell.rules.base import (
    SPECS,
    CommandCall,
    DangerClass,
    Rule,
    after_sub,
    operand,
    operands_at_least,
)

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


def opens_tunnel(call: CommandCall) -> bool:
    """A tunnel that lets others in or carries any traffic; `-L port:host:port` only serves this machine."""
    more = frozenset({"-M"}) if call.program == "autossh" else frozenset[str]()
    arguments = parse_arguments(call.words, SPECS["ssh"].values | more, stop_early=True)
    if arguments.has("-R", "-D", "-w", "-g"):
        return True
    if any(not LOCAL_FORWARD.match(each.text) for each in arguments.values("-L")):
        return True
    return any(TUNNEL_SETTING.match(each.text) for each in arguments.values("-o"))


LOCAL_FORWARD = re.compile(r"(?:(?:localhost|127[\d.]*|\[?::1\]?):)?(?:\d+|\ufdd0+|\.{0,2}/[^:]+):[^*]")
TUNNEL_SETTING = re.compile(
    r"(?i)\s*(?:remoteforward|dynamicforward|tunnel(?!device)|gatewayports)\s*[= ]\s*(?!no\b)"
    r"|localforward\s*[= ]\s*(?:\*|0\.0\.0\.0|\[?::\]?):"
)
TUNNELS = re.compile(r"(?:client|server|http|tcp|tunnel|share|start|up|connect|expose|funnel|serve|--port|-p|-c)")


def serves_everybody(call: CommandCall) -> bool:
    values = parse_arguments(call.words, name_set("--address -n --namespace --context")).values("--address")
    return any(not re.fullmatch(r"(?:localhost|127[\d.]*|::1)(?:,.*)?", each.text) for each in values)


RULES = (
    Rule(
        "ssh autossh",
        reason="opens a tunnel that lets others in or carries any traffic",
        where=opens_tunnel,
        yes="ssh -R 9000:localhost:22 host.example",
        no="ssh -L 8080:localhost:80 web1",
    ),
    Rule(
        "chisel frpc frps bore lt localtunnel zrok pagekite sish inlets ngrok rathole gost ligolo-ng localhost.run "
        "tailscale cloudflared zerotier-cli",
        reason="lets others reach this machine",
        where=lambda call: any(TUNNELS.match(word.text) for word in call.words[:3]),
        yes="chisel client x.example R:2222:localhost:22",
        no="chisel --version",
    ),
    Rule(
        "kubectl oc k",
        "port-forward|proxy",
        reason="lets everybody in the network reach the cluster",
        where=serves_everybody,
        yes="kubectl port-forward --address 0.0.0.0 svc/db 5432",
        no="kubectl port-forward svc/db 5432",
    ),
    Rule(
        "nmap masscan zmap rustscan arp-scan netdiscover fping",
        reason="scans a network",
        where=operand(lambda text: re.search(r"\d/\d+$|\d-\d+$", text) and not text.startswith("127.")),
        yes="nmap -sS 10.0.0.0/8",
        no="nmap -p 80 localhost",
    ),
    Rule(
        "arpspoof ettercap bettercap hping3 slowloris aireplay-ng airmon-ng macof dsniff yersinia responder mitmproxy_ "
        "dnschef sslstrip t50 goldeneye",
        reason="attacks or listens in on a network",
        where=operands_at_least(0),
        yes="arpspoof -i eth0 -t 10.0.0.2 10.0.0.1",
        no="arpspoof --help",
    ),
    Rule(
        "openvpn openfortivpn openconnect strongswan ipsec",
        reason="sends the traffic of this machine through another network",
        where=lambda call: call.arguments.has("--config", "-c") or bool(call.arguments.operands),
        yes="openvpn --config x.ovpn",
        no="openvpn --version",
    ),
    Rule(
        "nmcli",
        "connection|con|c|radio|networking|n|device|dev|d",
        reason="changes the network",
        where=after_sub(
            1,
            lambda text: (
                text
                in ("add", "import", "modify", "edit", "delete", "down", "up", "off", "on", "disconnect", "connect")
            ),
        ),
        yes="nmcli connection import type openvpn file x.ovpn",
        no="nmcli connection show",
    ),
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
