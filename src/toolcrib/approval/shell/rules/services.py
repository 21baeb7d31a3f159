"""Stopping, restarting and changing services."""

from __future__ import annotations

import re

from toolcrib.approval.shell.rules.base import DangerClass, Rule, after_sub, operand

DANGERS = (
    DangerClass(
        "service",
        "service manipulation",
        "this host",
        r"\bsystemctl\b.*\b(?:stop|disable|mask|restart|kill)\b|\bservice\s+\S+\s+stop",
        "systemctl stop nginx",
    ),
    DangerClass(
        "local_service",
        "access to a local service",
        "this host",
        r"\b(?:docker|podman|containerd)\.sock\b|\bsystem_bus_socket\b|SSH_AUTH_SOCK",
        "curl --unix-socket /var/run/docker.sock http://localhost/containers/json",
    ),
)

SYSTEMCTL = (
    "stop|restart|try-restart|reload-or-restart|try-reload-or-restart|disable|mask|unmask|kill|"
    "isolate|set-default|edit|revert|reenable|set-property|set-environment|unset-environment|"
    "link|clean|freeze|preset|preset-all|enable|start|daemon-reexec|condrestart|force-reload|"
    "reload|reset-failed_|switch-root|default|bind|mount-image"
)
INIT = (
    "stop",
    "restart",
    "force-stop",
    "condrestart",
    "try-restart",
    "force-reload",
    "reload",
    "start",
    "zap",
    "graceful-stop",
    "--full-restart",
)

RULES = (
    Rule(
        "busctl",
        "call|set-property|emit",
        reason="makes another service of this machine act",
        key="local_service",
        yes="busctl call org.freedesktop.PackageKit /x y z",
        no="busctl list",
    ),
    Rule(
        "i3-msg swaymsg hyprctl awesome-client qtile bspc niri",
        reason="makes the desktop run a program",
        where=lambda call: any(re.search(r"\b(?:exec|spawn|bind\w*)\b", word.text) for word in call.words),
        key="local_service",
        yes="i3-msg 'exec firefox'",
        no="i3-msg workspace 2",
    ),
    Rule(
        "docker podman",
        "context|system create|update|use|connection",
        reason="makes commands for containers act on another machine",
        where=lambda call: any(re.search(r"(?:tcp|ssh|https?)://", word.text) for word in call.words),
        key="local_service",
        yes="docker context create x --docker host=tcp://x.example:2375",
        no="docker context use default",
    ),
    Rule(
        "systemctl",
        SYSTEMCTL,
        reason="changes a system service",
        yes="systemctl --now disable nginx",
        no="systemctl status nginx",
    ),
    Rule(
        "service rc-service invoke-rc.d sv",
        reason="changes a system service",
        where=operand(lambda text: text in (*INIT, "down", "up", "exit", "kill", "once", "term", "hup")),
        yes="service nginx stop",
        no="service nginx status",
    ),
    Rule(
        "rc-update update-rc.d chkconfig",
        reason="changes which services start",
        where=operand(
            lambda text: text in ("del", "delete", "remove", "disable", "off", "add", "on", "enable", "defaults")
        ),
        yes="update-rc.d nginx disable",
        no="chkconfig --list",
    ),
    Rule(
        "supervisorctl",
        "stop|restart|shutdown|remove|reload|update|signal|clear",
        reason="changes a service",
        yes="supervisorctl stop all",
        no="supervisorctl status",
    ),
    Rule(
        "pm2",
        "stop|restart|delete|del|kill|flush|reset|reload",
        reason="changes a service",
        yes="pm2 delete all",
        no="pm2 list",
    ),
    Rule(
        "launchctl",
        "unload|bootout|remove|stop|disable|kickstart|kill|load|bootstrap|reboot|submit|enable|setenv|asuser",
        reason="changes a system service",
        yes="launchctl unload x.plist",
        no="launchctl list",
    ),
    Rule(
        "initctl stop_ restart_",
        "stop|restart|emit|reload",
        reason="changes a system service",
        yes="initctl stop nginx",
        no="initctl list",
    ),
    Rule(
        "brew",
        "services stop|restart|kill|cleanup",
        reason="stops a service",
        yes="brew services stop postgresql",
        no="brew services list",
    ),
    Rule(
        "snap",
        "stop|restart|disable|remove|revert|set|unset|connect|disconnect",
        reason="changes a service",
        yes="snap stop lxd",
        no="snap list",
    ),
    Rule("nginx", reason="stops or reloads the web server", flags="-s", yes="nginx -s stop", no="nginx -t"),
    Rule(
        "apachectl apache2ctl httpd",
        reason="stops or restarts the web server",
        where=operand(lambda text: text in ("stop", "restart", "graceful", "graceful-stop")),
        yes="apachectl stop",
        no="apachectl configtest",
    ),
    Rule(
        "apachectl apache2ctl httpd",
        reason="stops or restarts the web server",
        flags="-k",
        yes="httpd -k stop",
        no="httpd -v",
    ),
    Rule(
        "pg_ctl pg_ctlcluster",
        reason="stops or restarts the database",
        where=operand(lambda text: text in ("stop", "restart", "kill", "promote", "reload")),
        yes="pg_ctl stop -m fast",
        no="pg_ctl status",
    ),
    Rule(
        "rabbitmqctl",
        "stop|stop_app|reset|force_reset|delete_queue|purge_queue|delete_user|delete_vhost|"
        "forget_cluster_node|shutdown",
        reason="stops or empties the message broker",
        yes="rabbitmqctl stop_app",
        no="rabbitmqctl status",
    ),
    Rule("monit", "stop|restart|unmonitor|quit", reason="changes a service", yes="monit stop all", no="monit status"),
    Rule(
        "s6-svc svc runit",
        reason="changes a service",
        where=lambda call: any(word.text[:2] in ("-d", "-k", "-x", "-t", "-r") for word in call.words),
        yes="s6-svc -d /run/x",
        no="s6-svc --help",
    ),
    Rule(
        "net sc nssm",
        "stop|delete|remove|config|restart",
        reason="changes a service",
        yes="net stop spooler",
        no="net view",
    ),
    Rule(
        "gitlab-ctl chef-server-ctl",
        "stop|restart|cleanse|reconfigure|kill|uninstall",
        reason="changes a service",
        yes="gitlab-ctl stop",
        no="gitlab-ctl status",
    ),
    Rule(
        "emqx_ctl kafka-server-stop.sh zkServer.sh",
        reason="stops a service",
        where=after_sub(0, lambda text: text in ("stop", "restart")),
        yes="zkServer.sh stop",
        no="zkServer.sh status",
    ),
    Rule(
        "hermes toolcrib",
        "gateway stop|restart|uninstall",
        reason="stops the gateway",
        yes="toolcrib gateway stop",
        no="toolcrib gateway status",
    ),
    Rule(
        "hermes toolcrib",
        "update|uninstall",
        reason="replaces this program",
        yes="toolcrib uninstall",
        no="toolcrib doctor",
    ),
)
