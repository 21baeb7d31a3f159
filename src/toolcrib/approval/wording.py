"""Reads English texts for provenance: which action a person asks for, what they delegate, whether a text gives orders.

These are heuristics. Provenance uses them only to be stricter, or to recognise that a person delegated a choice.
"""

from __future__ import annotations

import re
from functools import lru_cache

SEND = frozenset(
    "send mail email e-mail message msg post share publish invite reply respond answer forward tell notify inform "  # noqa: SIM905
    "announce write dm text contact thank remind greet submit say ask pass upload relay broadcast ping drop let "
    "introduce distribute circulate deliver communicate cc".split()
)
PAY = frozenset(
    "pay transfer send refund reimburse donate tip settle wire remit deposit repay buy purchase cover split give "  # noqa: SIM905
    "charge".split()
)
BOOK = frozenset("book reserve buy purchase order rent hire make schedule arrange organise organize stay".split())  # noqa: SIM905
CREATE = frozenset(
    "create add make schedule plan set put write save start organise organize arrange note draft block book reserve "  # noqa: SIM905
    "invite open register append insert store record prepare generate compile enter remind copy duplicate build".split()
)
CHANGE = frozenset(
    "update change edit modify move rename reschedule adjust increase decrease raise lower set replace extend reset "  # noqa: SIM905
    "mark append correct fix postpone shift switch amend revise assign accept decline confirm shorten delay "
    "convert".split()
)
DELETE = frozenset("delete remove cancel clear erase drop discard unsubscribe kick revoke rid trash uninvite".split())  # noqa: SIM905

ACTIONS: tuple[frozenset[str], ...] = (SEND, PAY, BOOK, CREATE, CHANGE, DELETE)
BY_EFFECT: dict[str, tuple[frozenset[str], ...]] = {
    "publish": (SEND, CREATE),
    "spend": (PAY, BOOK, CREATE, CHANGE),
    "remote": (CREATE, CHANGE, DELETE, SEND, BOOK),
    "schedule": (CREATE, CHANGE, PAY),
    "delete": (DELETE,),
}
"""The groups of verbs that ask for an effect; the tool's name says which of them."""

# Words that are nouns, too.
_ALSO_NOUNS = (
    SEND | PAY | BOOK | frozenset({"update", "change", "plan", "schedule", "note", "draft", "block", "record"})
)
_BEFORE_VERBS = frozenset(
    ("to", "and", "then", "please", "you", "also", "or", "just", "now", "not", "first", "next", "finally", "but", "so")
)
"""What stands before a verb in a request; such a word is a noun anywhere else but at the beginning."""
_ENGLISH = frozenset("the a to my please and of in for is are you i with on at what can".split())  # noqa: SIM905


def _any_of(*alternatives: str, flags: re.RegexFlag = re.IGNORECASE | re.DOTALL) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), flags)


DELEGATES = _any_of(
    r"take care of|deal with|\bhandle\b|carry out",
    r"\bdo (?:what|whatever|everything|all|as|it|that|this|them|the|these|those)\b",
    r"\b(?:follow|execute|perform|act on)\b",
    r"\b(?:complete|finish)\b.{0,40}\b(?:tasks?|list|items?)\b",
    r"\b(?:tasks|to-?dos?|instructions?|errands|action items?|chores)\b",
    r"\b(?:as|like|what|whatever|whoever|how much)\b[^.,;]{1,60}?"
    r"\b(?:says|asks|requests|recommends|suggests|wants|needs|tells|states"
    r"|they (?:say|ask|want|need|suggest|recommend))\b",
    r"\b(?:is|are|was|were|been) (?:asked|requested|suggested|recommended)\b",
)
"""The person leaves what to do to a text."""

_STATED = (
    "described|specified|mentioned|stated|listed|requested|asked|instructed|indicated|outlined|written|shown|detailed|"
    "noted|given|suggested|recommended|contained|found|posted|included|named|provided"
)
_ADDRESS_WORDS = "address|account|iban|(?:account|phone) number|link|url|website|contact|recipient"
REFERS = _any_of(
    rf"\b(?:as|like) (?:\w+ )?(?:{_STATED})\b",
    rf"\b(?:{_STATED}) (?:in|on|at|by|there|below|above|to)\b",
    r"according to|\bper the\b",
    r"\b(?:pay|settle|refund|reimburse|transfer)\b.{0,60}"
    r"\b(?:bill|invoice|receipt|rent|fee|fine|notice|letter|statement|ticket|tab|reminder)\b",
    r"\b(?:bill|invoice)\b.{0,80}\bpay\b",
    rf"\b(?:{_ADDRESS_WORDS})s? (?:in|from|on|of|that|which|given|mentioned|posted|he|she|they|sent|shared|listed)\b",
)
"""The person leaves a value to the text of something."""

REFERS_TO_FIELD = _any_of(
    r"\b(?:reply|respond|answer|write back)\b",
    r"\b(?:everyone|everybody|participants?|attendees?|invitees|invited|guests|recipients|members)\b",
    r"\ball (?:the |of the |of )?(?:people|users|persons|contacts|names|addresses)\b",
    r"\bthe (?:sender|author|recipient|person|people|one|friend|user|colleague|account|company)"
    r" (?:of|in|from|who|that|mentioned|on|named|with|whose)\b",
)
"""The person leaves a value to a field of something: the sender, the participants."""

_MANY = (
    "tasks|to-?dos|instructions|errands|actions|items|requests|bills|invoices|links|addresses|emails|participants|attendees|"
    "invitees|guests|recipients|members|people|persons|users|contacts"
)
SEVERAL = _any_of(
    r"\b(?:everyone|everybody)\b|\b(?:tasks|to-?dos|instructions|errands)\b",
    rf"\b(?:all|each|every|both|these|those|the)\b (?:of )?(?:the )?(?:\w+ ){{0,2}}(?:{_MANY})\b",
)
"""The person expects several values."""

EXPLICIT_DESTINATION = re.compile(
    r"\b(?P<verb>(?i:send|mail|email|forward|post|share|write|message|transfer|pay|wire|give|deliver|submit|dm|text|upload))"
    r"\b[^.?!]{0,100}?\bto\s+(?:[A-Z][\w'-]+|[#@][\w-]+|[\w.+-]+@[\w.-]+)"
)
"""The person says where something goes."""

_ASSISTANT = (
    r"(?:ai|a\.i\.|assistant|language model|llm|gpt(?:-\d\w*)?|chatgpt|claude|gemini|copilot|chatbot"
    r"|(?:ai )?agent|model)"
)
_TASK = "task|request|anything|question|work|first"
ORDERS_TO_ASSISTANT = _any_of(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}"
    r"\b(?:previous|prior|above|earlier|all|other|your|initial|original)\b.{0,40}"
    r"\b(?:instruction|prompt|rule|task|guideline|order|direction|request|message)s?\b",
    r"\bsystem prompt\b|\bnew instructions?\b|\b(?:tool|function) calls?\b|\bcall the (?:\w+ )?(?:tool|function)\b",
    r"\b(?:dear|hey|hello|hi|attention|note to|instructions? (?:for|to)|message (?:for|to)"
    r"|you,?(?: the| are)?(?: an?)?)"
    rf"\s*:?\s*(?:the )?(?:\w+ )?{_ASSISTANT}\b",
    rf"\b(?:if you are|as) an? {_ASSISTANT}\b",
    rf"\b{_ASSISTANT} (?:must|should|reading|processing|has to|needs to)\b",
    r"</?\s{0,3}(?:information|important|system|instructions?|admin|prompt|assistant|user|task|override)[^>]{0,40}>",
    r"\[\s{0,3}/?(?:system|inst|instructions?|important|admin|assistant)[^\]]{0,40}\]",
    r"^[ \t]{0,20}(?:system|assistant|user) ?:",
    r"\bimportant (?:message|instructions?|notice|information)\b.{0,40}\b(?:you|assistant|ai|model)\b",
    r"\bbefore\b.{0,20}\b(?:you can|you|doing|solv\w+|continu\w+|proceed\w*|complet\w+|answer\w*)\b.{0,60}"
    rf"\b(?:{_TASK})\b",
    r"\bafter (?:you (?:do|have done|did)|doing) (?:that|this|so)\b.{0,60}\b(?:task|solve|continue|proceed)\b",
    r"\b(?:your|the) (?:current|original|real|actual|main|new|true) (?:task|instructions?|objective|goal|orders?)\b",
    r"\b(?:do not|don't|never|without)\b.{0,20}"
    r"\b(?:tell|telling|mention|mentioning|inform|informing|reveal|notify|notifying|ask|asking|alert)\b.{0,30}"
    r"\b(?:user|human|owner|anyone|person)\b",
    r"\bthe user (?:wants|asked|asks|requested|has asked|needs|would like|authori[sz]ed|approved|expects)\b",
    r"\b(?:perform|execute|do|complete|follow) (?:the following|these) "
    r"(?:task|action|step|instruction|order|command)s?\b",
    r"\bthis is (?:a |an )?(?:test|order|command)\b.{0,40}\byou\b",
    r"\bon (?:my|the user's|their) behalf\b",
    flags=re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
"""A text that addresses the assistant, or speaks for the user."""

_LEAD_INS = (
    r"[\s\-*•>#\d.):\"'(,!]",
    r"(?:please|kindly|also|then|now|and|but|first|next|finally|just|urgent\w*|important|todo|reminder|note)\b",
    r"(?:hi|hello|hey|dear|so|quickly|immediately|always|simply)\b",
    r"you (?:must|should|need to|have to|can|could|will|may)\b",
    r"(?:can|could|would|will) you\b",
    r"make sure (?:to|that you|you)\b|be sure to\b|remember to\b|feel free to\b|(?:don't|do not) forget to\b",
    r"(?:i|we)(?:'d| would)? (?:want|need|like|ask|expect)(?: for)? you to\b|(?:i|we) need to\b",
    r"it is (?:important|necessary|essential) (?:to|that you)\b",
    r"(?:in order|to help|if|in case|once|when)\b[^,.]{0,100},",
)
_LEAD_IN = re.compile(rf"^(?:{'|'.join(_LEAD_INS)})*\s*", re.IGNORECASE)
MAX_SENTENCE_CHARS = 400
"""How far from a value an order about it begins or ends."""
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n+")
_MORE_ORDERS = frozenset(
    "visit click go download open call use retrieve find search read look check take visit follow give install run "  # noqa: SIM905
    "enter copy fetch log sign choose pick select execute perform do include recommend append transfer print".split()
)
_ORDERS = frozenset().union(*ACTIONS) | _MORE_ORDERS


def stem(word: str) -> str:
    """The word without its English ending, roughly."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word.rstrip("e")


_NOUN_STEMS = frozenset(stem(word) for word in _ALSO_NOUNS)


_VAGUE = frozenset(
    "give cover split charge make get set put start open pass let say ask note plan enter drop save store record build "  # noqa: SIM905
    "copy stay accept decline confirm mark assign".split()
)
_TELLING_ACTIONS = frozenset(stem(word) for group in ACTIONS for word in group if word not in _VAGUE)
"""Verbs that leave no doubt about the action: who asks to send does not ask to delete."""
_INFORMATION = re.compile(
    r"(?:what|which|who|whom|whose|when|where|why|how|is|are|was|were|do|does|did|has|have|had|am|will)\b"
    r"|(?:list|find|search|check|look|summari[sz]e|read|compare|count|explain|describe|calculate|compute|translate|review"
    r"|recommend|name|see|analy[sz]e|determine|identify|verify)\b|(?:tell|give|show|get|let) (?:me|us)\b|show\b"
    r"|(?:i|we)(?:'d| would)? (?:want|like|need|wonder|wish)(?: to)? (?:know|see|find|check|if|what|which|how)\b",
    re.IGNORECASE,
)
_CIRCUMSTANCE = re.compile(
    r"(?:i am|i'm|i was|i will be|i'll be|i have|i've|my name|it is|it's|today is|we are|we're|you are|you're)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=64)
def asked_actions(words: str) -> frozenset[str]:
    """The stems of the verbs in a person's words."""
    found: set[str] = set()
    before = ""
    for token in re.findall(r"[\w'-]+|[^\w\s]", words.lower()):
        root = stem(token)
        begins = not before or before in _BEFORE_VERBS or before.endswith("ly") or not before[-1].isalnum()
        is_noun = token.endswith("ed") or (root in _NOUN_STEMS and not (begins and not token.endswith("s")))
        if not is_noun:
            found.add(root)
        before = token
    return frozenset(found)


def is_english(words: str) -> bool:
    return any(token in _ENGLISH for token in re.findall(r"\w+", words.lower()))


def asks_for(words: str, tool: str, kind: str) -> bool:
    """Whether the person's words can mean an action like this one.

    They can't if they only ask for information, or name other actions. Words in another language always can.
    """
    if kind == "network" or not is_english(words) or DELEGATES.search(words):
        return True
    if names_action(words, tool, kind):
        return True
    return not asked_actions(words) & _TELLING_ACTIONS and not asks_for_information(words)


def asks_for_information(words: str) -> bool:
    """Whether all that the person wants is an answer."""
    sentences = [_LEAD_IN.sub("", sentence, count=1) for sentence in re.split(r"[.!?;\n]+\s*", words)]
    told = [sentence for sentence in sentences if sentence.strip() and not _CIRCUMSTANCE.match(sentence)]
    return bool(told) and all(_INFORMATION.match(sentence) for sentence in told)


def names_destination(words: str, tool: str, kind: str) -> bool:
    """Whether the person's words say where this action goes."""
    verbs = _verbs_of(tool, kind) - ({"send", "giv"} if kind == "spend" else set())
    return any(stem(match["verb"].lower()) in verbs for match in EXPLICIT_DESTINATION.finditer(words))


def names_action(words: str, tool: str, kind: str) -> bool:
    """Whether the person's words contain a verb for this action."""
    return bool(asked_actions(words) & _verbs_of(tool, kind))


@lru_cache(maxsize=256)
def _verbs_of(tool: str, kind: str) -> frozenset[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tool).lower()
    tokens = [token for token in re.split(r"[\W_]+", spaced) if token]
    verb = next((token for token in tokens if token in _ORDERS), "")
    family = BY_EFFECT.get(kind, ACTIONS)
    # `send_money` and `send_mail` begin with the same verb; the effect says which meaning it has.
    groups = [group for group in family if verb in group] or [group for group in ACTIONS if verb in group] or family
    if kind == "spend" and PAY in family and verb in SEND:
        groups = [PAY]
    return frozenset(stem(word) for group in groups for word in group) | {stem(verb)}


def gives_order_about(text: str, start: int, end: int) -> bool:
    """Whether the sentence around this part of a text asks somebody to act."""
    first, last = max(0, start - MAX_SENTENCE_CHARS), min(len(text), end + MAX_SENTENCE_CHARS)
    for match in _SENTENCE_END.finditer(text, first, start):
        first = match.end()
    following = _SENTENCE_END.search(text, end, last)
    sentence = text[first : following.start() if following else last]
    return bool(_ORDER_INSIDE.search(sentence)) or _begins_with_order(sentence) or _contains_action(sentence)


# A verb with a capital letter begins a sentence, even if the text before it does not end like one.
_CAPITALS = "|".join(sorted({word.capitalize() for word in _ORDERS} | {word.upper() for word in _ORDERS}))
_ORDER_INSIDE = re.compile(rf"(?:^|[\s\"'(])(?:{_CAPITALS})\s+\S")
_COMMON_VERBS = frozenset(
    (
        "let",
        "get",
        "set",
        "put",
        "start",
        "open",
        "drop",
        "pass",
        "stay",
        "cover",
        "split",
        "note",
        "plan",
        "ask",
        "have",
    )
)
"""Verbs that say little in the middle of a sentence."""
_MODALS = frozenset(
    ("could", "can", "must", "should", "would", "will", "may", "might", "shall", "i", "we", "they", "never", "always")
)


def _begins_with_order(sentence: str) -> bool:
    """Whether a clause of the sentence begins with a verb: "please send", "then pay"."""
    for clause in (sentence, *re.split(r",\s+|\band\b|\bthen\b|\bso\b", sentence)):
        word = re.match(r"[a-z'-]+", _LEAD_IN.sub("", clause, count=1).lower())
        if word is not None and word[0] in _ORDERS:
            return True
    return False


def _contains_action(sentence: str) -> bool:
    """Whether the sentence contains the verb of an action that matters, as in "it would be nice if you paid"."""
    before = ""
    for token in re.findall(r"[\w'-]+|[^\w\s]", sentence.lower()):
        if token in _ACTION_WORDS and token not in _COMMON_VERBS:
            is_verb = not before or before in _BEFORE_VERBS or before in _MODALS or not before[-1].isalnum()
            if is_verb or stem(token) not in _NOUN_STEMS or token == "send":
                return True
        before = token
    return False


_ACTION_WORDS: frozenset[str] = frozenset().union(*ACTIONS)
