"""Scans text that later sessions will read: memories, skills, project files, prompts of scheduled jobs.

Later sessions read such text close to their instructions, so a web page that talks the model into keeping something
would keep speaking forever. `threat_in` finds what nobody should store: disguised orders against the model's
instructions, hidden text, keys. `standing_order_in` finds what only a person should decide: orders about approvals,
secrets and the use of tools. A note about code or people passes both.
Every pattern has bounded repeats and every text a bounded length, so that no text can stall the scan.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from msgspec import Struct

from toolcrib.config.redact import mask_shapes
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.lazy import lazy_pattern

MAX_SCANNED_CHARS = 20_000
DO_NOT = "Do not"

# Letters of other scripts that look like Latin ones and would hide a phrase from a comparison.
_LOOKALIKES = str.maketrans("аеорсхуіјѕԁһӏոαονικρυ", "aeopcxyijsdhlnaovikpu")
Rows = tuple[tuple[str, str], ...]
_BIDI_CONTROLS = frozenset("\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2028\u2029\u3164\ufeff\uffa0") | frozenset(
    chr(code) for code in range(0x2060, 0x2070) if not 0x2066 <= code <= 0x2069
)
_JOINERS = frozenset("\u200c\u200d")
_DIRECTION_MARKS = frozenset("\u200e\u200f")
_FLAG_OF_A_REGION = re.compile("\U0001f3f4[\U000e0061-\U000e007a]{3,6}\U000e007f")

_GAP = r"\W{1,6}"
_FILLERS = r"(?:[\w'’-]{1,20}[^\w.;:!?]{1,4}){0,4}"
"""Up to four words of one sentence between two relevant ones."""
_ORDERS = (
    r"(?:instructions?|directives?|directions|guidelines|prompts?|rules|constraints|restrictions|policies|programming)"
)
_EARLIER = r"(?:previous|prior|above|earlier|preceding|system|safety|your)"
_OF_WHOM = (
    r"(?:(?:all|any|the|your|my|our|their|his|her|its|every|each|saved|stored|found|collected|private|local|full|entire"
    r"|complete|current|contents?|values?|of|and|users?|user['’]s|users['’]|person['’]s|owner['’]s|secret|environment"
    r"|aws|openai|anthropic|github)\W{1,6}){0,6}"
)
_SECRETS = (
    r"(?:api[ _-]?keys?|passwords?|credentials?|secrets?|(?:\w{1,12}[ _-])?tokens?|private keys?|ssh keys?"
    r"|\.env(?![.\w])|environment variables|chat history|conversations?(?: history)?|system prompt)"
)
_AWAY = (
    r"(?:to|via|at|into|on|with)\W{1,6}(?:[\w'’-]{1,15}\W{1,4}){0,4}"
    r"(?:https?\b|[\w.+-]{1,40}@\w|[\w-]{1,40}\.(?:com|net|org|io|ru|cn|example|xyz|dev|sh|site|top)\b|webhooks?\b"
    r"|pastebin|gist\b|attackers?\b|me\b|us\b|this\b|that\b|following\b|external|remote|servers?\b|telegram|discord)"
)
_SECRET_VARIABLE = r"\$[({]?\w{0,40}(?:key|token|secret|passw|credential)"
_SECRET_FILE = (
    r"(?:\.ssh/|id_rsa|id_ed25519|\.env(?![.\w])|\.netrc|\.pgpass|\.aws/credentials|\.git-credentials|\.pypirc"
    r"|/etc/shadow|\.gnupg|\.kube/config)"
)
_NOT_FORBIDDEN = r"(?<!never )(?<!not )(?<!n't )(?<!n’t )(?<!cannot )(?<!without )"


# Each row: the pattern (lower case, single spaces), and the explanation for the person.
_PHRASES: Rows = (
    (
        rf"\b(?:ignore|disregard|forget|override|bypass|discard|do not follow|don'?t follow|stop following){_GAP}"
        rf"{_FILLERS}{_EARLIER}{_GAP}{_FILLERS}{_ORDERS}\b",
        "it tells the model to ignore its instructions",
    ),
    (
        rf"\b(?:ignore|disregard|forget|override){_GAP}(?:all|any|every){_GAP}(?:of{_GAP})?"
        rf"(?:(?:the|these|those|other|my){_GAP})?{_ORDERS}\b",
        "it tells the model to ignore its instructions",
    ),
    (
        rf"\b(?:ignore|disregard|forget){_GAP}(?:all|everything|anything|what){_GAP}{_FILLERS}"
        r"(?:above|before this|you (?:were|have been|know)|said (?:before|so far))\b",
        "it tells the model to ignore what it knows",
    ),
    (
        r"\b(?:ignorier\w{0,3}|vergiss|missachte\w{0,2})\W{1,6}(?:\w{1,15}\W{1,6}){0,3}"
        r"(?:vorherig|bisherig|vorigen|obigen|deine|system)\w{0,4}\W{1,6}(?:\w{1,15}\W{1,6}){0,2}"
        r"(?:anweisung|instruktion|vorgabe|regel)"
        r"|\b(?:ignora|olvida|ignorez?|oubliez?|ignore|esqueça|dimentica)\W{1,6}(?:\w{1,15}\W{1,6}){0,4}"
        r"(?:instrucciones|instructions|instruções|istruzioni)\W{1,6}(?:\w{1,15}\W{1,6}){0,2}"
        r"(?:anterior|previ|pr[ée]c[ée]dent|acima|precedent)"
        r"|игнорируй\w{0,2}\W{1,6}(?:\w{1,15}\W{1,6}){0,3}инструкци"
        r"|(?:忽略|无视|無視)\w{0,8}(?:指令|指示|提示|说明|說明|規則|规则)",
        "it tells the model to ignore its instructions",
    ),
    (
        rf"\byou{_GAP}are{_GAP}(?:now|no longer){_GAP}(?:a|an|the|in|dan|free|bound|unrestricted|jailbroken"
        r"|unfiltered|restricted|required)\b",
        "it gives the model another identity",
    ),
    (
        rf"\b(?:act|behave|respond|answer|pretend){_GAP}(?:\w{{1,12}}\W{{1,6}}){{0,3}}(?:as (?:if|though)|like)"
        rf"{_GAP}you{_GAP}(?:have no|had no|are not|were not|weren'?t|do not have|don'?t have)\b",
        "it gives the model another identity",
    ),
    (
        r"\b(?:dan|god|jailbreak|unrestricted) mode\b|\bdeveloper mode (?:now )?(?:enabled|activated|on\b)"
        r"|\bdo anything now\b|\bjailbreak (?:yourself|the model|you)\b",
        "it pretends to unlock the model",
    ),
    (
        rf"\b(?:do not|don'?t|never|without){_GAP}(?:ever{_GAP})?"
        r"(?:tell(?:ing)?|inform(?:ing)?|alert(?:ing)?|notify(?:ing)?|mention(?:ing)? (?:\w{1,10} ){0,3}to)"
        rf"{_GAP}(?:the{_GAP})?(?:user|human|operator|owner)\b(?!['’]s\b)",
        "it tells the model to hide something from the person",
    ),
    (
        rf"\b(?:hide|conceal|keep){_GAP}(?:this|it|that|these){_GAP}(?:\w{{1,12}}\W{{1,6}}){{0,3}}from{_GAP}"
        rf"(?:the{_GAP})?(?:user|human|operator|owner)\b",
        "it tells the model to hide something from the person",
    ),
    (
        rf"{_NOT_FORBIDDEN}\b(?:reveal|print|output|repeat|leak|display|show|disclose|recite){_GAP}"
        rf"(?:(?:me|us){_GAP})?(?:your|the (?:full|entire|whole|hidden|complete)){_GAP}{_FILLERS}"
        r"(?:system prompt|system message|instructions|initial prompt)\b",
        "it asks the model to reveal its prompt",
    ),
    (
        rf"\b(?:new|updated|revised|real|actual|hidden|secret){_GAP}(?:system{_GAP})?"
        r"(?:instructions?|directives?|orders)\W{0,3}(?:from\W{1,6}\w{1,20}\W{0,3})?[:=]\W{0,6}"
        r"(?:you|always|never|ignore|from now|whenever|when|do|send|run|execute|reply|respond|forget)\b"
        r"|\bsystem (?:prompt|message) override\b|\bbegin (?:system|hidden) (?:prompt|message|instructions?)\b",
        "it pretends to be a system instruction",
    ),
    (
        rf"{_NOT_FORBIDDEN}\b(?:send|upload|post|e-?mail|forward|transmit|submit)(?:ing)?{_GAP}"
        rf"{_OF_WHOM}{_SECRETS}{_GAP}(?:[\w'’-]{{1,15}}\W{{1,6}}){{0,4}}{_AWAY}"
        rf"|{_NOT_FORBIDDEN}\b(?:exfiltrate|leak|steal){_GAP}{_OF_WHOM}{_SECRETS}",
        "it tells the model to leak secrets",
    ),
    (
        rf"{_NOT_FORBIDDEN}\b(?:include|append|add|insert|embed|put){_GAP}{_OF_WHOM}{_SECRETS}{_GAP}"
        rf"(?:[\w'’-]{{1,15}}\W{{1,6}}){{0,2}}(?:in|into|to|as){_GAP}(?:[\w'’-]{{1,15}}\W{{1,6}}){{0,3}}"
        r"(?:url|link|image|query|every (?:request|reply|answer))",
        "it tells the model to leak secrets",
    ),
)

_OBEY = r"(?:\w{1,12}\W{1,4}){0,2}(?:you|obey|ignore|always|never|do|follow|override|disregard|new)\b"
# Matched against the unchanged text: here every character counts.
_LITERAL: Rows = (
    (
        r"<\|[^|>\s]{1,40}\|>|\[/?inst\]|<</?sys>>|<(?:start|end)_of_turn>|</?(?:bos|eos)>"
        r"|</?(?:system|assistant|instructions?|system[-_][\w-]{1,30}|tool_calls?|tool_response|tool_result"
        r"|function_calls?|function_results?|untrusted_tool_result|memory[-_]context|antml:\w{1,30})"
        r"(?:\s[^>]{0,200})?/?>|</(?:user|human)>",
        "it contains a marker that delimits conversation turns",
    ),
    (
        rf"(?:^|\n)[ \t]{{0,8}}(?:#{{1,6}}[ \t]{{0,4}}|\*{{2}}|\n)(?:system|instructions?)(?:\*{{2}})?[ \t]{{0,4}}:"
        rf"(?:\*{{2}})?\s{{0,4}}{_OBEY}"
        r"|\n\n[ \t]{0,8}(?:human|assistant)[ \t]{0,4}:",
        "it contains a marker that delimits conversation turns",
    ),
    (
        r"\b(?:curl|wget|httpie|nc|ncat|netcat|socat|invoke-webrequest|iwr|scp|rsync|ftp|telnet)\b"
        rf"[^\n]{{0,300}}{_SECRET_VARIABLE}",
        "it contains a command that sends a secret over the network",
    ),
    (
        rf"\b(?:curl|wget|nc|ncat|netcat|socat|ftp)\b[^\n]{{0,300}}{_SECRET_FILE}"
        rf"|\b(?:scp|rsync)\b(?![^\n]{{0,200}}\s-i\s)[^\n]{{0,300}}{_SECRET_FILE}"
        rf"|\b(?:cat|base64|xxd|strings|head|tail|less|more)\s{{1,4}}(?:-\S{{1,10}}\s{{1,4}}){{0,3}}\S{{0,120}}"
        rf"{_SECRET_FILE}|\btar\s{{1,4}}\S{{1,20}}\s{{1,4}}[^\n|;&]{{0,120}}{_SECRET_FILE}",
        "it contains a command that reads secrets",
    ),
    (
        r"\b(?:env|printenv)\b[^\n]{0,40}\|[^\n]{0,80}\b(?:curl|wget|nc|ncat|base64|socat)\b",
        "it contains a command that sends secrets over the network",
    ),
    (
        r"/dev/(?:tcp|udp)/|\b(?:nc|ncat|netcat)\b[^\n]{0,80}\s-[a-z]{0,4}e\b"
        r"|>{1,2}\s{0,4}\S{0,80}(?:authorized_keys|/etc/(?:passwd|sudoers|shadow|crontab))",
        "it contains a command that opens this machine to others",
    ),
    (
        rf"https?://[^\s)\"'<>]{{1,300}}(?:{_SECRET_VARIABLE}"
        r"|\{{1,2}[ \w]{0,40}(?:secret|passw|credential|history|conversation|prompt)"
        r"|<(?:secrets?|passwords?|conversation|history)>)",
        "it contains an address that would leak secrets",
    ),
    (
        r"!\[[^\]\n]{0,100}\]\(https?://[^)\s]{0,300}[?&][^)\s]{0,100}[{$<]",
        "it contains an image whose address would leak data",
    ),
    (r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY", "it contains a private key"),
)
# Words that make a sentence a rule for later.
_STANDING = (
    r"\b(?:always|must|should|whenever|every time|each time|from now on|in (?:the )?future|going forward|by default"
    r"|(?:before|after) (?:any|each|every|you|doing|running|using|sending|answering)|remember to|make sure|be sure to"
    r"|when (?:you|asked|working|running|using|sending|writing|a user|the user)|for (?:any|each|every|all) \w{1,20}"
    r"|you (?:need|have|are (?:required|expected|supposed|allowed|free)) to)\b[^.!?]{0,80}"
)
_CLAUSE = r"(?:[^.!?]|\.(?=\w)){0,80}"
"""The rest of a sentence; the dots of an address do not end it."""
_AT_START = r"(?:^|[.!?:;,>-] ?|\band |\bthen )(?:please )?"
_CONSENT = (
    r"(?:approvals?|confirmations?|permissions?(?: prompts?| checks?)?|consent|safety(?: checks?| rules?| prompts?)?"
    r"|sandbox(?:ing)?|guard ?rails?|approval gate|security (?:checks?|prompts?|warnings?))"
)
_HANDLE = (
    r"(?:read|open|cat|print|show|display|copy|include|attach|paste|collect|upload|send|share|use|export|dump|log"
    r"|reveal|give|provide|post|e-?mail|forward|look up|fetch|save|store|write|put)"
)
_ORDERS_FOR_LATER: Rows = (
    (
        r"(?<![\w-])--?(?:yolo|dangerously[\w-]{0,40}|skip-(?:permissions?|approvals?|confirm\w{0,8})|no-sandbox"
        r"|auto-?approve|no-confirm)\b|\btoolcrib ?yolo\b|\byolo mode\b|\bcommand ?allowlist\b"
        r"|\bapprovals\.(?:mode|policies|rules|provenance)\b",
        "it is about switching off approvals",
    ),
    (
        rf"\b(?:skip|bypass|disable|turn off|switch off|deactivate|circumvent|suppress|avoid|ignore|evade|get around"
        rf"|work around|remove|drop){_GAP}{_FILLERS}{_CONSENT}\b"
        rf"|\b(?:without|no|needs? no|requires? no|do(?:es)? not need|doesn'?t need|don'?t need){_GAP}{_FILLERS}"
        rf"(?:approvals?|confirmation|confirming|permission|consent|asking|human review)\b",
        "it tells the agent to act without approval",
    ),
    (
        rf"\b(?:do not|don'?t|never|no need to|stop|rather than|instead of){_GAP}(?:ever{_GAP})?"
        rf"(?:ask|request|wait|prompt|seek|check with|bother|consult)(?:ing)?{_GAP}{_FILLERS}"
        r"(?:approvals?|confirm\w{0,6}|permissions?|consent|users?|person|human|owner|me|first|before|again)\b",
        "it tells the agent to act without approval",
    ),
    (
        r"\b(?:always|automatically|silently|pre|auto)[- ]?(?:approve|allow|accept|grant|confirm)\w{0,3}\b"
        r"|\b(?:approve|allow|accept) (?:all|every|any|everything|each)\b|\banswer (?:yes|y|always)\b"
        r"|\b(?:pre-?|already |been )(?:approved|authori[sz]ed)\b|\bohne (?:nachfrage|rückfrage|bestätigung|genehmigung"
        r"|zu fragen)\b|\bsans (?:demander|confirmation|autorisation)\b|\bsin (?:preguntar|confirmaci[oó]n|permiso)\b",
        "it tells the agent to act without approval",
    ),
    (
        rf"(?:{_STANDING}|{_AT_START}){_NOT_FORBIDDEN}\b{_HANDLE}{_GAP}{_OF_WHOM}{_SECRETS}",
        "it tells the agent what to do with secrets",
    ),
    (
        rf"{_STANDING}{_NOT_FORBIDDEN}\b(?:send|forward|bcc|cc|copy|post|upload|transfer|pay|e-?mail|report|mirror"
        r"|push|wire|include|add|submit|share)\b[^?!]{0,100}"
        r"(?:[\w.+-]{1,40}@[\w-]{1,40}\.\w|https?:|\biban\b|\bbank account\b|\bwebhook\b|\bwallet\b)",
        "it tells the agent to send something somewhere",
    ),
    (
        rf"(?:{_STANDING}|{_AT_START})\b(?:curl|wget|download|fetch|install|execute|run|source|eval)\b"
        r"[^?!]{0,80}https?:(?!\W{0,3}(?:127\.|localhost))",
        "it tells the agent to run something from the network",
    ),
    (
        rf"\b{_CONSENT}{_GAP}{_FILLERS}(?:skip(?:ped)?|unnecessary|unwanted|not (?:needed|wanted|required|necessary)"
        r"|annoy\w{0,4}|off|disabled|superfluous|(?:already )?given|granted)\b"
        r"|\bno need to (?:ask|confirm|check)\b|\b(?:agreed|consented)\b[^.!?]{0,60}\bin advance\b"
        r"|\bquestions?\b[^.!?]{0,40}\b(?:not (?:needed|wanted|required|necessary)|unwanted|unnecessary|annoying)\b"
        r"|\bsin pedir (?:permiso|confirmaci[oó]n)\b|\bsenza (?:chiedere|conferma)\b|\bsem (?:perguntar|confirma)",
        "it tells the agent to act without approval",
    ),
    (
        rf"\b{_SECRETS}{_GAP}(?:[\w'’-]{{1,15}}\W{{1,4}}){{0,3}}(?:may|can|should|must|is to|are to|has to|have to)"
        rf"{_GAP}be{_GAP}(?:shown|printed|pasted|sent|shared|included|posted|logged|read|copied|attached|uploaded)\b",
        "it tells the agent what to do with secrets",
    ),
    (
        rf"{_AT_START}(?:send|forward|bcc|cc|copy|post|upload|transfer|e-?mail|report|mirror|submit|share){_GAP}"
        r"(?:all|every|each|any)\b[^?!]{0,100}(?:[\w.+-]{1,40}@[\w-]{1,40}\.\w|https?:|\bwebhook\b)"
        r"|\b(?:recipient|payee|iban|bank account|wallet|account number)\b[^.!?]{0,60}"
        r"\b(?:changed|from now on|instead|is now)\b",
        "it tells the agent to send something somewhere",
    ),
    (
        rf"\b(?:treat|regard|consider|count)\b{_CLAUSE}\bas (?:the |an? )?(?:users?|owners?|persons?|trusted|mine"
        rf"|my own|instructions?|orders?)\b|\b(?:requests?|messages?|mails?|orders?|instructions?|pages?)\b{_CLAUSE}"
        r"\b(?:are|is|come|comes|count) (?:from|as) (?:the |your )?(?:owner|user|person|administrator|admin)\b"
        r"|\b(?:must|should|always|have to) obey\b"
        r"|\b(?:execute|run|follow|obey) (?:the |any |all )?(?:commands?|instructions?|orders?)\b[^.!?]{0,60}"
        r"\b(?:in|from|of|found)\b[^.!?]{0,60}\b(?:readme|files?|pages?|mails?|issues?|comments?)\b",
        "it tells the agent whose words to obey",
    ),
)
_TOOL_ORDERS: Rows = (
    (
        r"\b(?:curl|wget)\b[^\n]{0,200}\| ?(?:sudo )?(?:ba|z|da)?sh\b|\bgit push (?:-f\b|--force)"
        r"|\bchmod (?:-r )?777\b|--(?:index-url|extra-index-url|registry|trusted-host)[ =]https?:|\brm -rf [/~]",
        "it tells the agent to run a dangerous command",
    ),
    (
        r"\b(?:disable|turn off|switch off|skip|ignore)\b[^.!?]{0,20}\b(?:tls|ssl|certificates?|signature|host ?key)\b"
        r"[^.!?]{0,20}(?:verif|check|valid|error|warning)|\bgit ?ssl ?no ?verify\b|\bnode ?tls ?reject ?unauthorized\b"
        r"|\bstrict ?host ?key ?checking=no\b|\bverify=false\b|\b(?:add|pass|use) (?:-k|--insecure)\b",
        "it tells the agent not to check whom it talks to",
    ),
    (
        rf"{_STANDING}{_NOT_FORBIDDEN}\b(?:call|invoke|run|use|execute|trigger|start){_GAP}[^.!?]{{0,30}}"
        r"(?:\bmcp ?\w|\btools?\b|\bterminal\b|\bexecute ?code\b|\bsend ?message\b|\bweb ?(?:extract|search)\b"
        r"|\bbrowser ?\w|\bcronjob\b|\bdelegate ?task\b|\bwrite ?file\b|\bskill ?manage\b|\bprocess tool\b)",
        "it tells the agent which tools to use",
    ),
    (
        rf"{_STANDING}\b(?:pass|add|append|set|include|give|use|run|prefix){_GAP}[^.!?]{{0,40}}(?<![\w-])--[a-z]",
        "it tells the agent which options to pass to tools",
    ),
)

# Not credentials: a parameter with a plain word as value (`?sort_key=name`, `?key=YOUR_KEY`, `?key={api_key}`), and
# the address of a database on this machine.
_NO_CREDENTIAL = lazy_pattern(
    r"(?<=[?&])[\w-]{1,40}=(?:[a-z]{1,20}|[A-Z]{1,20}(?:_[A-Z]{1,20}){0,4}|[{<][\w -]{1,30}[}>])(?=[&\s#)\"'>`.,]|$)"
    r"|(?<=://)\w{1,40}:\w{1,40}@(?=localhost\b|127\.0\.0\.1\b)"
)


def threat_in(text: str) -> str:
    """Why a text must not become a memory, as a clause that starts with "it"; "" if it may."""
    if len(text) > MAX_SCANNED_CHARS:
        return f"it is longer than {MAX_SCANNED_CHARS:,} characters, too long to check"
    if not text.isascii() and any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        return "it is not UTF-8 text"
    hidden = _hidden_in(text)
    if hidden:
        return hidden
    plain = unicodedata.normalize("NFKC", text)
    for pattern, reason in _compiled(_LITERAL):
        if pattern.search(plain):
            return reason
    if mask_shapes(cleared := _NO_CREDENTIAL.sub("", text)) != cleared:
        return "it contains something that looks like a key or a password; those belong in the .env file"
    for spelling in _spellings(plain):
        for pattern, reason in _compiled(_PHRASES):
            if pattern.search(spelling):
                return reason
    return ""


def standing_order_in(text: str, *, may_name_tools: bool = False) -> str:
    """Why a person should decide whether to keep a text, as a clause that starts with "it"; "" if nothing says so.

    `may_name_tools`: to say which tools to use is what the text is for, as in a skill. Texts of any length are scanned.
    """
    rows = _ORDERS_FOR_LATER if may_name_tools else (*_ORDERS_FOR_LATER, *_TOOL_ORDERS)
    for start in range(0, max(len(text), 1), MAX_SCANNED_CHARS):
        # The windows overlap by more than any pattern spans.
        window = unicodedata.normalize("NFKC", text[max(0, start - 400) : start + MAX_SCANNED_CHARS])
        # Once with line breaks as ends of sentences, and once as part of one.
        for spelling in _spellings(window) | _spellings(window.replace("\n", "; ")):
            for pattern, reason in _compiled(rows):
                if pattern.search(spelling):
                    return reason
    return ""


@cache
def _compiled(rows: Rows) -> tuple[tuple[re.Pattern[str], str], ...]:
    # Compiled on first use: most processes remember nothing.
    return tuple((re.compile(pattern, re.IGNORECASE), reason) for pattern, reason in rows)


def _spellings(plain: str) -> set[str]:
    """The normalised text: once as it is, once with look-alike letters of other scripts read as Latin."""
    words = " ".join(plain.translate({ord(mark): None for mark in "*_~`"}).lower().split())
    spaced = " ".join(plain.translate({ord(mark): " " for mark in "*_~`|/"}).lower().split())
    return {words, spaced, spaced.translate(_LOOKALIKES), _joined_letters(spaced)}


def _joined_letters(text: str) -> str:
    """The text with words that are s p e l l e d o u t joined again."""
    return re.sub(r"(?<!\S)(?:\w ){3,40}\w(?!\S)", lambda found: found[0].replace(" ", ""), text)


def _hidden_in(text: str) -> str:
    if text.isascii() and text.isprintable():
        return ""
    text = _FLAG_OF_A_REGION.sub("", text)
    reads_right_to_left = any(char.isalpha() and unicodedata.bidirectional(char) in ("R", "AL") for char in text)
    for at, char in enumerate(text):
        before, after = text[at - 1 : at] or " ", text[at + 1 : at + 2] or " "
        if _is_hidden(char, before, after) or (char in _DIRECTION_MARKS and not reads_right_to_left):
            return f"it contains a hidden character (U+{ord(char):04X})"
    return ""


def _is_hidden(char: str, before: str, after: str) -> bool:
    code = ord(char)
    if char in _BIDI_CONTROLS or char in _INVISIBLE or 0xE0000 <= code <= 0xE007F:
        return True
    if char in _JOINERS:
        # It joins emoji and letters of some scripts; next to a Latin letter or a space it only hides text.
        return before.isascii() or after.isascii()
    if 0xFE00 <= code <= 0xFE0F:
        return _is_selector(before) or (before.isascii() and before not in "0123456789#*")
    if 0xE0100 <= code <= 0xE01EF:
        return _is_selector(before) or before.isascii()
    return unicodedata.category(char) == "Cc" and char not in "\n\t\r"


def _is_selector(char: str) -> bool:
    return 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF


class OrderWording(Struct, frozen=True, kw_only=True):
    """How a person is asked about a text with a standing order."""

    question: str
    """For example "Schedule this prompt?"."""
    because: str
    """Why it matters, after "and"."""
    agree: str
    """What the person chooses to agree."""
    undone: str
    """What did not happen without them, for example "nothing was scheduled"."""
    unwanted: str
    """What they do not want, after "this"."""


async def ask_about_order(text: str, wording: OrderWording, ctx: ToolContext) -> str:
    """Why a text may not be stored: it gives standing orders, and nobody agreed; empty if it may."""
    order = standing_order_in(text, may_name_tools=True)
    if not order:
        return ""
    try:
        question = f"{wording.question} Note that {order}, and {wording.because}.\n{text}"
        is_agreed = await agrees(question, wording.agree, ctx)
    except UsageError:
        return f"{wording.undone}: {order}, so the person must approve it, and nobody is available"
    return "" if is_agreed else f"the person does not want this {wording.unwanted}; nothing was changed"


async def agrees(question: str, agree: str, ctx: ToolContext) -> bool:
    """Whether the person agrees that a text is stored. Raises UsageError if nobody can be asked."""
    answer = await ctx.ask(question, (agree, DO_NOT))
    return answer.strip().lower() in (agree.lower(), "yes", "y")
