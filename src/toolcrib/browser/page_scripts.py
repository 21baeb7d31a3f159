"""The scripts that toolcrib runs in pages. Each is one function; apart from scrolling and marks, they only read."""

from __future__ import annotations

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
  const label = control.innerText || control.value || control.getAttribute('aria-label') || control.title || '';
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
# The facts about all controls of a page, each with its place; nothing if there are too many.
ALL_FACTS = f"""
(() => {{
  const facts = {ELEMENT_FACTS.strip()};
  const found = document.querySelectorAll('{CONTROLS}');
  if (found.length > {MAX_CONTROLS}) return null;
  try {{
    return Array.from(found, e => {{ const b = e.getBoundingClientRect();
      return [[b.x, b.y, b.width, b.height].map(Math.round), facts(e)]; }});
  }} catch {{ return null; }}
}})()
"""
FOCUSED_ELEMENT = "() => { let e = document.activeElement; while (e && e.shadowRoot && e.shadowRoot.activeElement) "
FOCUSED_ELEMENT += "e = e.shadowRoot.activeElement; return e || document.body; }"

# Returns JSON, when the tree of the page has not changed for a moment; a second at most. As text, because playwright
# takes long to transfer objects.
REST = """
(wait) => new Promise(done => {
  let count = 0, seen = 0, rounds = 0;
  const watch = new MutationObserver(() => { count++; });
  watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  const end = () => { watch.disconnect(); done(JSON.stringify({
    title: document.title, height: innerHeight, top: Math.round(scrollY), changes: count,
    total: document.scrollingElement ? document.scrollingElement.scrollHeight : innerHeight,
    elements: document.getElementsByTagName('*').length, state: document.readyState, controls: CONTROLS,
    passwords: Array.from(document.querySelectorAll('input[type=password]'), e => e.value).filter(Boolean)})); };
  const look = () => {
    if (count === seen || ++rounds > 18) { end(); } else { seen = count; setTimeout(look, 50); }
  };
  if (wait) { setTimeout(look, wait); } else { look(); }
})
""".replace("CONTROLS", ALL_FACTS)
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
PASSWORDS = "() => Array.from(document.querySelectorAll('input[type=password]'), e => e.value).filter(Boolean)"
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
