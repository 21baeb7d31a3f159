"""The scripts that toolcrib runs in pages, and the facts about elements that they return."""

from __future__ import annotations

import re

import msgspec

from toolcrib.config.redact import has_secret
from toolcrib.core.types import Effect

# Looks up from the element to the control it belongs to. Only reads.
ELEMENT_FACTS = """
(element) => {
  const near = element.closest('button,input,select,textarea,label,a,summary,[role],[contenteditable]') || element;
  const control = (near.tagName === 'LABEL' && near.control) || near;
  const form = control.form || control.closest('form');
  const tag = control.tagName.toLowerCase();
  const type = (control.getAttribute('type') || '').toLowerCase();
  const isSubmit = !!form && ((tag === 'button' && (type === 'submit' || type === '')) ||
    (tag === 'input' && (type === 'submit' || type === 'image')));
  const fields = form ? Array.from(form.elements).filter(e => e.type !== 'hidden') : [];
  const typed = e => ['text', 'email', 'tel', 'url', 'number', 'search', 'textarea', 'password'].includes(e.type);
  const action = form ? (control.getAttribute('formaction') || form.getAttribute('action') || '') : '';
  let formHost = '';
  try { formHost = form ? new URL(action || location.href, location.href).host : ''; } catch { formHost = '?'; }
  const label = control.textContent || control.value || control.getAttribute('aria-label') || control.title || '';
  return {
    tag, type, label: String(tag === 'input' && !isSubmit ? control.getAttribute('aria-label') || control.name || ''
      : label).trim().slice(0, 80),
    host: location.host,
    editable: tag === 'textarea' || tag === 'select' || control.isContentEditable ||
      (tag === 'input' && !['submit', 'button', 'image', 'reset', 'checkbox', 'radio', 'file'].includes(type)),
    in_form: !!form,
    submits: isSubmit,
    method: form ? (control.getAttribute('formmethod') || form.getAttribute('method') || '').toLowerCase() : '',
    form_host: formHost,
    text_fields: fields.filter(typed).length,
    has_private_fields: fields.some(e => e.type === 'password' || e.type === 'file' || e.tagName === 'TEXTAREA'),
    download: tag === 'a' && control.hasAttribute('download'),
    opens_window: /^(?!_self|_top|_parent)./.test((isSubmit ? form : control).getAttribute('target') || ''),
    autocomplete: (control.getAttribute('autocomplete') || '').toLowerCase(),
  };
}
"""
CONTROLS = "button,input,select,textarea,summary,label,a[download],a[target],[role=button],[contenteditable]"
MAX_CONTROLS = 300
# The facts about all controls that are shown, each with its name as a snapshot has it; null if that takes more to find
# out. Nothing if there are too many.
ALL_FACTS = f"""
(() => {{
  const facts = {ELEMENT_FACTS.strip()};
  const name = e => {{
    if (e.hasAttribute('aria-labelledby')) return null;
    if (e.hasAttribute('aria-label')) return e.getAttribute('aria-label');
    if (e.labels && e.labels.length) return e.labels.length === 1 ? e.labels[0].textContent : null;
    if (e.tagName === 'INPUT') return e.type === 'submit' || e.type === 'button' ? e.value : e.placeholder || e.title;
    return e.textContent; }};
  const found = document.querySelectorAll('{CONTROLS}');
  if (found.length > {MAX_CONTROLS}) return null;
  try {{
    return Array.from(found).filter(e => e.getClientRects().length).map(e => [name(e), facts(e)]);
  }} catch {{ return null; }}
}})()
"""
# The facts about the element with the focus; null if that is in a frame.
FOCUSED_FACTS = f"""
() => {{ let e = document.activeElement; while (e && e.shadowRoot && e.shadowRoot.activeElement)
  e = e.shadowRoot.activeElement; e = e || document.body;
  return /^I?FRAME$|^OBJECT$|^EMBED$/.test(e.tagName) ? null : ({ELEMENT_FACTS.strip()})(e); }}
"""
FOCUSED_ELEMENT = "() => { let e = document.activeElement; while (e && e.shadowRoot && e.shadowRoot.activeElement) "
FOCUSED_ELEMENT += "e = e.shadowRoot.activeElement; return e || document.body; }"

# Also those in shadow trees, which snapshots show as well.
PASSWORDS = """
() => { const roots = [document], found = [];
  for (const root of roots) for (const e of root.querySelectorAll('*')) {
    if (e.shadowRoot) roots.push(e.shadowRoot);
    if (e.type === 'password' && e.value) found.push(e.value); }
  return found; }
"""
# Returns JSON, when the tree of the page has not changed for a moment; a second at most. As text, because playwright
# takes long to transfer objects. A page without scripts hardly changes by itself, so the shorter moment is enough.
REST = """
([short, long]) => new Promise(done => {
  const wait = document.scripts.length || window.length ? long : short;
  let count = 0, seen = 0, rounds = 0;
  const watch = new MutationObserver(() => { count++; });
  watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  const end = () => { watch.disconnect(); done(JSON.stringify({
    title: document.title, height: innerHeight, top: Math.round(scrollY), changes: count,
    total: document.scrollingElement ? document.scrollingElement.scrollHeight : innerHeight,
    elements: document.getElementsByTagName('*').length, state: document.readyState, controls: CONTROLS,
    passwords: (PASSWORDS)()})); };
  const look = () => {
    if (count === seen || ++rounds > 18) { end(); } else { seen = count; setTimeout(look, 50); }
  };
  if (wait) { setTimeout(look, wait); } else { look(); }
})
""".replace("CONTROLS", ALL_FACTS).replace("PASSWORDS", PASSWORDS.strip())
SCROLL = """
(sign) => {
  const scrolls = e => e.scrollHeight > e.clientHeight + 1 && /auto|scroll|overlay/.test(getComputedStyle(e).overflowY);
  const move = e => { const before = e.scrollTop;
    e.scrollBy({top: sign * 0.8 * Math.min(e.clientHeight, innerHeight), behavior: 'instant'});
    return Math.round(e.scrollTop - before); };
  const page = document.scrollingElement || document.documentElement;
  let inner = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  while (inner && inner !== page && !scrolls(inner)) inner = inner.parentElement;
  let moved = inner && inner !== page ? move(inner) : 0;
  const target = moved ? inner : page;
  if (!moved) moved = move(page);
  return {moved, top: Math.round(target.scrollTop), total: target.scrollHeight,
    at_end: target.scrollTop + target.clientHeight >= target.scrollHeight - 1};
}
"""
IMAGES = """
(limit) => Array.from(document.images).slice(0, limit).map(e => ({
  src: e.currentSrc || e.src, alt: e.alt, width: e.naturalWidth, height: e.naturalHeight}))
"""
# In a closed shadow tree, so that styles of the page do not apply.
DRAW_MARKS = """
(boxes) => {
  const host = document.createElement('div');
  host.setAttribute('data-toolcrib-marks', '');
  host.style.cssText = 'all: initial; position: fixed; inset: 0; pointer-events: none; z-index: 2147483647';
  const root = host.attachShadow({mode: 'closed'});
  for (const [number, x, y, width, height] of boxes) {
    const colour = `hsl(${(number * 67) % 360} 90% 35%)`;
    const box = document.createElement('div');
    box.style.cssText = `position: fixed; left: ${x}px; top: ${y}px; width: ${width}px; height: ${height}px;` +
      `outline: 2px solid ${colour}; outline-offset: -1px`;
    const mark = document.createElement('div');
    mark.textContent = number;
    mark.style.cssText = `position: fixed; left: ${Math.max(0, x)}px; top: ${Math.max(0, y - 13)}px; color: white;` +
      `background: ${colour}; font: bold 11px/13px sans-serif; padding: 0 3px`;
    root.append(box, mark);
  }
  document.documentElement.append(host);
}
"""
REMOVE_MARKS = "() => document.querySelectorAll('[data-toolcrib-marks]').forEach(e => e.remove())"
TEXT = "(limit) => { const w = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); let t = ''; "
TEXT += "while (t.length < limit && w.nextNode()) { const s = w.currentNode.nodeValue.trim(); if (s) t += s + '\\n'; } "
TEXT += "return t.slice(0, limit); }"


_SPENDING = re.compile(
    r"\b(buy|pay|purchase|check ?out|place (the |your |my )?order|order now|donate|book now|reserve|subscribe|rent)\b",
    re.IGNORECASE,
)
_SENDING = re.compile(
    r"\b(send|post|publish|share|submit|delete|remove|confirm|transfer|sign up|register|create account|apply|"
    r"unsubscribe|accept|agree|approve|withdraw|cancel (order|booking|subscription|account)|save changes)\b",
    re.IGNORECASE,
)
_SECRET_FIELDS = ("password", "one-time-code", "cc-number", "cc-csc")
MAX_LABEL_CHARS = 60


class ElementFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an element before it is used."""

    tag: str = ""
    type: str = ""
    label: str = ""
    host: str = ""
    editable: bool = False
    in_form: bool = False
    submits: bool = False
    method: str = ""
    form_host: str = ""
    text_fields: int = 0
    has_private_fields: bool = False
    download: bool = False
    opens_window: bool = False
    """Whether a link or form names another window."""
    autocomplete: str = ""

    @property
    def is_upload(self) -> bool:
        return self.tag == "input" and self.type == "file"

    @property
    def takes_secret(self) -> bool:
        return self.type == "password" or any(name in self.autocomplete for name in _SECRET_FIELDS)

    @property
    def only_searches(self) -> bool:
        """Whether its form only asks for another page: what it sends ends up in the address, and nothing is private."""
        is_get = self.method == "get" or (not self.method and self.text_fields <= 1)
        return is_get and not self.has_private_fields


def click_effects(facts: ElementFacts) -> tuple[Effect, ...]:
    """What a click on the element does outside the browser."""
    network = Effect("network", facts.host)
    label = " ".join(facts.label.split())[:MAX_LABEL_CHARS]
    if facts.tag in ("button", "input", "a", "summary", "div", "span", "label") and not facts.editable:
        if _SPENDING.search(label) and facts.type not in ("checkbox", "radio", "file") and facts.tag != "a":
            return (network, Effect("spend", f"at {facts.host} (“{label}”)"))
        if facts.submits and not facts.only_searches:
            return (network, submission(facts, label))
        if not facts.in_form and facts.tag not in ("a", "label") and _SENDING.search(label):
            return (network, submission(facts, label))
    return (network,)


def press_effects(facts: ElementFacts, key: str) -> tuple[Effect, ...]:
    """What a key does: Enter submits the form of a field, and presses a button; Space presses a button."""
    network = Effect("network", facts.host)
    name = key.rpartition("+")[2].lower()
    is_field = facts.editable and facts.tag == "input"
    if name == "enter" and is_field and facts.in_form:
        return (network,) if facts.only_searches else (network, submission(facts, "Enter"))
    if name in ("enter", "numpadenter", "space", " ", "") and not facts.editable and facts.tag in ("button", "input"):
        return click_effects(facts)
    return (network,)


def type_effects(facts: ElementFacts, text: str) -> tuple[Effect, ...]:
    """What typing does; uploads are the caller's, because they name files."""
    network = Effect("network", facts.host)
    if facts.takes_secret or has_secret(text):
        field = f" into the field “{facts.label[:MAX_LABEL_CHARS]}”" if facts.label else ""
        return (network, Effect("secret", f"{field.strip() or 'in a field'} of {facts.host}"))
    return (network,)


def submission(facts: ElementFacts, label: str) -> Effect:
    """A form that is sent, or a button that sends something."""
    host = facts.form_host or facts.host
    return Effect("remote", f"a form (“{label}”)" if facts.in_form else f"“{label}”", service=host, action="submit")
