"""Variables that hold keys and passwords, and whether a command sends one to somebody else."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import UNKNOWN, Origin, name_set
from toolcrib.approval.shell.rules.base import CommandCall

SECRET_VARIABLE = re.compile(
    r"(?:.*_)?(?:API_?KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT|PRIVATE|DSN)(?:_.*)?"
    r"|.*_(?:KEY|KEY_ID|PASS|PWD|AUTH)|PGPASSWORD|MYSQL_PWD",
    re.IGNORECASE,
)
NO_SECRET = re.compile(
    r".*(?:PUBLIC|CACHE|PRIMARY|FOREIGN|SORT|PARTITION|INDEX|OBJECT|HOST|TABLE|REDIS|GROUP)_KEY(?:_ID)?"
    r"|.*(?:TOKEN|KEY|SECRET|PASSWORD)_(?:FILE|PATH|NAME|COUNT|LENGTH|LIMIT|TYPE|ID|URL|TTL)|MAX_TOKENS?|.*_DIR",
    re.IGNORECASE,
)
NETWORK_PROGRAMS = name_set(
    "curl wget http https xh httpie nc ncat netcat socat telnet ssh ftp lftp tftp mail mailx mutt sendmail swaks "
    "dig nslookup host ping ntfy openssl websocat grpcurl aria2c"
)
URL_HOST = re.compile(r"\b(?:https?|wss?|ftp)://(?:[^/@\s]*@)?(\[[^\]]*\]|[^/:?#\s]*)")
LOCAL_HOST = re.compile(
    r"(?:localhost|127(?:\.\d+){3}|0\.0\.0\.0|\[::1?\]|host\.docker\.internal|[\w-]+\.(?:local|test))"
)
OWNERS = {
    "openai": "openai.com",
    "anthropic": "anthropic.com",
    "github": "github.com githubusercontent.com ghcr.io",
    "gh": "github.com githubusercontent.com ghcr.io",
    "gitlab": "gitlab.com",
    "ci": "gitlab.com",
    "aws": "amazonaws.com",
    "google": "googleapis.com google.com",
    "gemini": "googleapis.com",
    "gcp": "googleapis.com",
    "azure": "azure.com windows.net microsoft.com microsoftonline.com",
    "hf": "huggingface.co",
    "huggingface": "huggingface.co",
    "slack": "slack.com",
    "discord": "discord.com",
    "stripe": "stripe.com",
    "npm": "npmjs.org npmjs.com",
    "pypi": "pypi.org",
    "twine": "pypi.org",
    "cloudflare": "cloudflare.com",
    "cf": "cloudflare.com",
    "digitalocean": "digitalocean.com",
    "linear": "linear.app",
    "notion": "notion.com notion.so",
    "sentry": "sentry.io",
    "telegram": "telegram.org",
    "openrouter": "openrouter.ai",
    "mistral": "mistral.ai",
    "groq": "groq.com",
    "datadog": "datadoghq.com",
    "dd": "datadoghq.com",
    "jira": "atlassian.net",
    "atlassian": "atlassian.net atlassian.com",
    "heroku": "heroku.com",
    "vercel": "vercel.com",
    "netlify": "netlify.com",
    "sendgrid": "sendgrid.com",
    "twilio": "twilio.com",
}
"""Whose key a variable holds, by the first part of its name, and the domains of the owner."""
USUAL_ENDINGS = name_set("com io org net dev co ai app cloud eu")
GENERIC = name_set("api access auth my the app service user admin bearer token key secret password x id jwt oauth")
LOGIN = re.compile(r"-[a-zA-Z]*u$|--user$|--oauth2-bearer$")
LOGIN_HEADER = re.compile(
    r"(?:-[a-zA-Z]*H ?|--header[= ])?"
    r"(?:(?:proxy-)?authorization|x-api-key|api-key|x-auth-token|private-token|apikey)\s*:",
    re.IGNORECASE,
)


def names_secret(name: str) -> bool:
    """Whether a variable is named like a key or a password."""
    return bool(SECRET_VARIABLE.fullmatch(name)) and not NO_SECRET.fullmatch(name)


def leaked_variable(call: CommandCall) -> str:
    """A key that a network program sends to somebody other than its owner; empty if there is none."""
    if call.program not in NETWORK_PROGRAMS:
        return ""
    hosts = [match.group(1).lower() for word in call.words for match in URL_HOST.finditer(word.text)]
    if hosts and all(LOCAL_HOST.fullmatch(host) for host in hosts):
        return ""
    before = ""
    for word in call.words:
        logs_in = bool(LOGIN.match(before) or LOGIN_HEADER.match(word.text))
        for name in word.keys:
            if not (hosts and all(may_receive(name, host, logs_in=logs_in) for host in hosts)):
                return f"${name}"
        before = word.text
    return "a key" if call.stdin is not None and call.stdin.origin & Origin.KEY else ""


def may_receive(name: str, host: str, *, logs_in: bool) -> bool:
    """Whether a host is the owner of a key, or the key names no owner and is used to log in."""
    if UNKNOWN in host:
        return False
    owner = name.lower().split("_")[0]
    if owner in OWNERS:
        return any(host == domain or host.endswith("." + domain) for domain in OWNERS[owner].split())
    if owner in GENERIC or "_" not in name:
        return logs_in
    labels = host.split(".")
    return (len(labels) > 1 and labels[-2] == owner and labels[-1] in USUAL_ENDINGS) or logs_in
