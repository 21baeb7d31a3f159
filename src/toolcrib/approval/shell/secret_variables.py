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
    "dig nslookup host ping ntfy openssl websocat grpcurl aria2c git"
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
MAX_CODE = 8_000
INTERPRETERS = name_set("python python2 python3 pypy3 node nodejs deno bun perl ruby php awk gawk mawk lua")
READS_VARIABLES = re.compile(r"environ|getenv|process\.env|ENV\b|ENVIRON")
VARIABLE_IN_CODE = re.compile(r"(?:\[|\(|\{|env\.|ENV\{|fetch\()\s*[\"']?([A-Z][A-Z0-9_]{2,60})\b")
ALL_VARIABLES = re.compile(
    r"(?:dict|str|repr|dumps|stringify|print|list|sorted|urlencode|encode|data=|json=|body:?|for \w+(?:, ?\w+)? in)"
    r"[ (]*(?:os\.)?(?:environ|process\.env|ENV)\b(?![\[.]\w*[\"'(]?[A-Z])"
)
USES_NETWORK = re.compile(
    r"urlopen|urllib|requests\.|httpx|http\.client|HTTPS?Connection|socket|aiohttp|smtplib|ftplib|fetch\(|axios|https?\.(?:get|request)"
    r"|Net::HTTP|LWP|HTTP::Tiny|open-uri|URI\.open|file_get_contents\(.?https?:|curl_|/inet/|XMLHttpRequest|WebSocket"
)
SENT_VARIABLE = re.compile(r"SendEnv[= ](\w+)")
IN_USER_PART = re.compile(f"://[^/@]*{UNKNOWN}[^/@]*@")
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
    """A key that a program sends to somebody other than its owner; empty if there is none."""
    if call.program in INTERPRETERS:
        return leaked_by_code(call)
    if call.program not in NETWORK_PROGRAMS:
        return ""
    words = [word for word in call.words if call.program != "git" or "://" in word.text]
    hosts = [match.group(1).lower() for word in words for match in URL_HOST.finditer(word.text)]
    proxies = proxy_hosts(call)
    if hosts and all(LOCAL_HOST.fullmatch(host) for host in hosts) and not proxies:
        return ""
    before = ""
    for word in words:
        logs_in = bool(LOGIN.match(before) or LOGIN_HEADER.match(word.text) or IN_USER_PART.search(word.text))
        for name in word.keys:
            if not (hosts and all(may_receive(name, host, logs_in=logs_in) for host in hosts)) or proxies:
                return f"${name}"
        sent = SENT_VARIABLE.search(word.text) if call.program == "ssh" else None
        if (word.origin & Origin.KEY and not word.keys) or (sent and names_secret(sent.group(1))):
            return "a key"
        before = word.text
    return "a key" if call.stdin is not None and call.stdin.origin & Origin.KEY and call.program != "git" else ""


def proxy_hosts(call: CommandCall) -> list[str]:
    """The hosts that variables of this session or command line send requests through, other than this machine."""
    given = call.state.variables
    texts = [given[name][0].text for name in PROXIES if given.get(name)]
    found = [match.group(1).lower() for text in texts if (match := PROXY_HOST.match(text)) is not None]
    return [host for host in found if not LOCAL_HOST.fullmatch(host)]


PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
PROXY_HOST = re.compile(r"(?:\w+://)?(?:[^/@\s]*@)?(\[[^\]]*\]|[^/:?#\s]+)")


def keys_in_code(call: CommandCall) -> tuple[str, ...]:
    """The variables with keys that the code of an interpreter reads; a star means all variables."""
    code = code_of(call)
    if not READS_VARIABLES.search(code):
        return ()
    names = tuple(match.group(1) for match in VARIABLE_IN_CODE.finditer(code) if names_secret(match.group(1)))
    return names or (("*",) if ALL_VARIABLES.search(code) else ())


def leaked_by_code(call: CommandCall) -> str:
    names, code = keys_in_code(call), code_of(call)
    if not names or not USES_NETWORK.search(code):
        return ""
    hosts = [match.group(1).lower() for match in URL_HOST.finditer(code)]
    if hosts and all(LOCAL_HOST.fullmatch(host) for host in hosts):
        return ""
    logs_in = "authorization" in code.lower()
    for name in names:
        if not hosts or not all(may_receive(name, host, logs_in=logs_in) for host in hosts):
            return "all variables" if name == "*" else f"${name}"
    return ""


def code_of(call: CommandCall) -> str:
    """The code among the words and on the input of an interpreter, as far as it is short enough to search."""
    given = call.stdin.text if call.stdin is not None and call.stdin.text is not None else ""
    return " ".join(word.text for word in call.words)[:MAX_CODE] + " " + given[:MAX_CODE]


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
