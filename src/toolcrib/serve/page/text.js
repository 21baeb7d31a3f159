// Text of models, tools and people: always data. Markdown becomes elements through a sanitiser, all else stays text.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";
import { useNow } from "./state.js";

const escaped = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);
const markdown = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    // An image of another server would tell it what is read here, so it is only named.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

const ALLOWED = {
  ALLOWED_TAGS: (
    "p br hr em strong del code pre a ul ol li blockquote h1 h2 h3 h4 h5 h6 table thead tbody tr th td input sup sub"
  ).split(" "),
  ALLOWED_ATTR: ["href", "start", "align", "type", "checked", "disabled", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  // Their values are no addresses; the pattern for those is applied to all others.
  ADD_URI_SAFE_ATTR: ["type", "checked", "disabled", "start", "align"],
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "A") {
    if (!node.hasAttribute("href")) return;
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
    node.setAttribute("title", node.getAttribute("href"));
  } else if (node.nodeName === "INPUT") {
    if (node.getAttribute("type") !== "checkbox") return node.remove();
    node.setAttribute("disabled", "");
    node.setAttribute("aria-label", node.hasAttribute("checked") ? "done" : "open");
  }
  const kind = node.getAttribute?.("class");
  if (kind && !/^language-[\w+-]+$/.test(kind)) node.removeAttribute("class");
});

export function sanitised(source) {
  return DOMPurify.sanitize(source, ALLOWED);
}

// Each block is made once; while an answer streams, only the last one changes.
export function Markdown({ text }) {
  const blocks = useMemo(() => {
    try {
      return markdown.lexer(text).filter((token) => token.type !== "space");
    } catch {
      return [{ type: "text", raw: text, text }];
    }
  }, [text]);
  return html`<div class="markdown">${blocks.map((token, n) => html`<${Block} key=${n} token=${token} />`)}</div>`;
}

function Block({ token }) {
  const place = useRef();
  useLayoutEffect(() => {
    const made = sanitised(markdown.parser([token]));
    for (const pre of made.querySelectorAll("pre")) frame(pre);
    for (const table of made.querySelectorAll("table")) {
      const around = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" });
      table.replaceWith(around);
      around.append(table);
    }
    place.current.replaceChildren(made);
  }, [token.raw]);
  return html`<div ref=${place}></div>`;
}

function element(name, attributes, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function frame(pre) {
  const language = pre.querySelector("code")?.className.replace("language-", "") ?? "";
  const around = element("div", { class: "code" });
  const bar = element("div", { class: "code-bar" });
  const copy = element("button", { type: "button", class: "quiet small" }, "Copy");
  copy.addEventListener("click", () => copyText(pre.textContent, (done) => { copy.textContent = done ? "Copied" : "Cannot copy"; }));
  bar.append(element("span", {}, language), copy);
  pre.replaceWith(around);
  pre.setAttribute("tabindex", "0");
  around.append(bar, pre);
}

export function copyText(text, then) {
  navigator.clipboard.writeText(text).then(() => then(true), () => then(false));
}

// A text as it is: control characters that would hide something are shown.
export const visible = (text) =>
  String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (one) =>
    one === "\r" ? "" : `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

const FOLDED_LINES = 14;

export function Output({ text, label, isLive = false, isWrong = false }) {
  const [isOpen, setOpen] = useState(false);
  const lines = visible(text).replace(/\n$/, "").split("\n");
  const isLong = lines.length > FOLDED_LINES + 3;
  // Of what still runs the end matters, of what is done the beginning.
  const shown = isOpen || !isLong ? lines : isLive ? lines.slice(-FOLDED_LINES) : lines.slice(0, FOLDED_LINES);
  return html`<div class="output ${isWrong ? "wrong" : ""}">
    ${label && html`<div class="label">${label}</div>`}
    <pre tabindex="0" aria-label=${label || "Output"}>${shown.join("\n")}</pre>
    ${isLong && html`<button type="button" class="quiet small" onClick=${() => setOpen(!isOpen)}>
      ${isOpen ? "Show less" : `Show all ${lines.length} lines`}</button>`}
  </div>`;
}

export function Diff({ text }) {
  const kind = (line) =>
    line.startsWith("+++") || line.startsWith("---") ? "path" : line.startsWith("@@") ? "place"
      : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "same";
  return html`<pre class="diff" tabindex="0" aria-label="Changes">${visible(text).replace(/\n$/, "").split("\n").map(
    (line) => html`<span class=${kind(line)}>${line}${"\n"}</span>`)}</pre>`;
}

const IMAGES = /^image\/(?:png|jpeg|gif|webp|avif)$/;

export function Images({ images }) {
  if (!images?.length) return null;
  return html`<div class="images">${images.map((one, n) => one.data && IMAGES.test(one.media_type)
    ? html`<img key=${n} src=${`data:${one.media_type};base64,${one.data}`} alt=${one.name || `Image ${n + 1}`} />`
    : html`<span key=${n} class="muted">${one.url || "an image that cannot be shown"}</span>`)}</div>`;
}

export const partsOf = (content) => {
  if (!content || typeof content === "string") return { text: content ?? "", images: [] };
  return {
    text: content.filter((one) => one.type === "text").map((one) => one.text).join("\n"),
    images: content.filter((one) => one.type === "image"),
  };
};

export function duration(ms) {
  if (ms < 950) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const count = (number) =>
  number < 1000 ? String(number) : number < 1e6 ? `${(number / 1e3).toFixed(number < 1e4 ? 1 : 0)}k` : `${(number / 1e6).toFixed(1)}M`;
export const money = (usd) => (usd < 0.01 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`);

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export function Ago({ at }) {
  const now = useNow(30_000);
  const seconds = at - now / 1000;
  const [size, unit] = [[60, "second"], [3600, "minute"], [86_400, "hour"], [604_800, "day"]].find(([limit]) => -seconds < limit) ?? [0, ""];
  const divided = { second: 1, minute: 60, hour: 3600, day: 86_400 };
  const date = new Date(at * 1000);
  const text = !size ? date.toLocaleDateString() : unit === "second" ? "just now" : relative.format(Math.round(seconds / divided[unit]), unit);
  return html`<time datetime=${date.toISOString()} title=${date.toLocaleString()}>${text}</time>`;
}

const SHAPES = {
  menu: "M4 7h16M4 12h16M4 17h16", add: "M12 5v14M5 12h14", write: "M12 20h8M16.5 4.5l3 3L8 19l-4 1 1-4z", remove: "M6 6l12 12M18 6L6 18",
};

export const Icon = ({ name }) =>
  html`<svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"><path d=${SHAPES[name]} /></svg>`;

// A moment that the server names as text, in the reader's own time.
export function Moment({ at }) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return visible(at);
  return html`<time datetime=${at} title=${date.toLocaleString()}>${date.toLocaleString([], { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" })}</time>`;
}

// Closes on Escape and gives the focus back; the browser keeps the focus inside.
export function Dialog({ label, onClose, children, kind = "" }) {
  const place = useRef();
  useEffect(() => {
    const before = document.activeElement;
    place.current.showModal();
    return () => before?.focus?.();
  }, []);
  const outside = (event) => event.target === place.current && onClose();
  return html`<dialog ref=${place} class=${kind} aria-label=${label} onClose=${onClose} onClick=${outside}>${children}</dialog>`;
}
