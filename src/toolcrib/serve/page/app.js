// The page: login, the frame around the screens, and the keys.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { contact, get, logIn, logOut, login } from "./api.js";
import { BoardScreen } from "./board.js";
import { ChatScreen } from "./chat.js";
import { conversation, open, refresh, refreshWaiting, stop, waiting } from "./conversation.js";
import { CostsScreen } from "./costs.js";
import { FilesScreen } from "./files.js";
import { MemoryScreen } from "./memory.js";
import { ApprovalsScreen, isTyping, loadIdentity, me } from "./questions.js";
import { RunScreen } from "./runs.js";
import { SessionList, SessionsScreen, refreshSessions, sessions, titleOf } from "./sessions.js";
import { SettingsScreen } from "./settings.js";
import { address, announcement, go, onLink, useLoaded, useStore } from "./state.js";
import { Dialog, Icon, visible } from "./text.js";
import { ToolsScreen } from "./tools.js";
import { JobsScreen, ProcessesScreen } from "./work.js";

const SCREENS = [
  ["/sessions", "Sessions", SessionsScreen], ["/approvals", "Approvals", ApprovalsScreen], ["/board", "Board", BoardScreen], ["/jobs", "Jobs", JobsScreen], ["/processes", "Processes", ProcessesScreen],
  ["/tools", "Tools", ToolsScreen], ["/memory", "Memory", MemoryScreen], ["/costs", "Costs", CostsScreen], ["/settings", "Settings", SettingsScreen],
];
const OF_ONE = [["/files/", "Files", FilesScreen], ["/runs/", "Timeline", RunScreen]];
const LOOK_MS = 10_000;

function App() {
  const { key } = useStore(login);
  const { text } = useStore(announcement);
  return html`${key ? html`<${Shell} />` : html`<${Login} />`}<div class="sr" aria-live="polite">${text}</div>`;
}

function Login() {
  const [code, setCode] = useState("");
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  async function enter(given) {
    setBusy(true);
    setProblem("");
    try {
      await logIn(given);
      if (location.pathname === "/login") go("/", { isReplacing: true });
    } catch (error) {
      setProblem(error.message);
    } finally {
      setBusy(false);
    }
  }
  useEffect(() => {
    const given = decodeURIComponent(location.hash.slice(1));
    if (!given) return;
    // The code leaves the address, and the history, before anything else happens.
    history.replaceState(null, "", location.pathname);
    enter(given);
  }, []);
  return html`<main class="login"><img src="/page/icon.svg" alt="" width="48" height="48" /><h1>toolcrib</h1>
    <form onSubmit=${(event) => { event.preventDefault(); enter(code); }}>
      <label for="code">One-time code</label>
      <input id="code" autocomplete="one-time-code" autocapitalize="characters" spellcheck="false" value=${code} onInput=${(event) => setCode(event.currentTarget.value)} placeholder="XXXX-XXXX-XXXX" />
      <button class="main" disabled=${!code.trim() || isBusy}>Log in</button>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    </form>
    <p class="muted">On the machine of the server, <code>toolcrib serve login</code> prints a link with a code that works once.</p></main>`;
}

function Shell() {
  const { path, words } = useStore(address);
  const { approvals, questions } = useStore(waiting);
  const { session, isWorking } = useStore(conversation);
  useStore(me);
  const [isDrawer, setDrawer] = useState(false);
  const [dialog, setDialog] = useState("");
  const count = approvals.length + questions.length;
  useEffect(() => {
    loadIdentity();
    refreshWaiting();
    const look = () => document.hidden || refresh();
    const timer = setInterval(look, LOOK_MS);
    document.addEventListener("visibilitychange", look);
    addEventListener("focus", look);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
      removeEventListener("focus", look);
    };
  }, []);
  useEffect(() => { setDrawer(false); }, [path]);
  useEffect(() => { refreshSessions(); }, [isWorking]);
  const name = path.startsWith("/chat/") ? session?.title || "Conversation" : (SCREENS.find(([one]) => one === path) ?? OF_ONE.find(([one]) => path.startsWith(one)))?.[1] ?? "New conversation";
  useEffect(() => { document.title = `${count ? `(${count}) ` : ""}${name} · toolcrib`; }, [count, name]);
  useEffect(() => {
    const onKey = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setDialog("palette");
      } else if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      else if (event.key === "?") setDialog("keys");
      else if (event.key === "/") { event.preventDefault(); setDialog("palette"); }
      else if (event.key === "c") { event.preventDefault(); newChat(); }
      else if (event.key === "i") { event.preventDefault(); document.querySelector(".composer textarea")?.focus(); }
      else if (event.key === "Escape") setDrawer(false);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const id = path.startsWith("/chat/") ? decodeURIComponent(path.slice(6)) : "";
  const [, , Screen] = SCREENS.find(([one]) => one === path) ?? OF_ONE.find(([one]) => path.startsWith(one)) ?? [];
  const screen = Screen ? html`<${Screen} key=${words} words=${words} id=${decodeURIComponent(path.split("/")[2] ?? "")} />` : html`<${ChatScreen} id=${id} onPalette=${() => setDialog("palette")} />`;
  return html`<div class="shell ${isDrawer ? "with-drawer" : ""}">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top"><button type="button" class="quiet icon" aria-label="Menu" aria-expanded=${isDrawer} onClick=${() => setDrawer(!isDrawer)}><${Icon} name="menu" /></button>
      <span class="brand">toolcrib</span>
      ${count > 0 ? html`<a class="badge" href="/approvals" onClick=${onLink}>${count} waiting</a>` : html`<span></span>`}
      <button type="button" class="quiet icon" aria-label="New conversation" onClick=${newChat}><${Icon} name="write" /></button></header>
    <aside class="side" aria-label="Menu">
      <div class="side-head"><a class="brand" href="/" onClick=${(event) => { onLink(event); open(""); }}><img src="/page/icon.svg" alt="" width="22" height="22" />toolcrib</a>
        <button type="button" onClick=${newChat}>New</button></div>
      <button type="button" class="find" onClick=${() => setDialog("palette")}>Find… <kbd>Ctrl K</kbd></button>
      <${SessionList} onChosen=${() => setDrawer(false)} />
      <nav class="screens" aria-label="Screens">${SCREENS.map(([href, label]) => html`<a key=${href} href=${href} onClick=${onLink} aria-current=${path === href ? "page" : undefined}>${label}
        ${href === "/approvals" && count > 0 && html`<span class="badge">${count}</span>`}</a>`)}
        <div class="foot"><span class="muted">${visible(me.get().name)}</span>
          <button type="button" class="quiet small" onClick=${() => setDialog("keys")}>Keys <kbd>?</kbd></button><button type="button" class="quiet small" onClick=${logOut}>Log out</button></div></nav>
    </aside>
    ${isDrawer && html`<button type="button" class="veil" aria-label="Close the menu" onClick=${() => setDrawer(false)}></button>`}
    <main id="main" tabindex="-1"><${Contact} />${screen}</main>
    ${dialog === "keys" && html`<${Keys} onClose=${() => setDialog("")} />`}
    ${dialog === "palette" && html`<${Palette} onClose=${() => setDialog("")} onKeys=${() => setDialog("keys")} />`}
  </div>`;
}

function newChat() {
  open("");
  go("/");
  setTimeout(() => document.querySelector(".composer textarea")?.focus(), 0);
}

function Contact() {
  const { isLost, at } = useStore(contact);
  return isLost && html`<p class="offline" role="status">The server is away since ${new Date(at).toLocaleTimeString()}. The page goes on when it is back.</p>`;
}

const KEYS = [
  ["Enter", "send; Shift + Enter starts a new line"], ["Escape", "leave the text field"], ["i", "write a message"], ["c", "new conversation"],
  ["y  s  a  n  e", "answer an approval: once, session, always, deny; edit it first"], ["Ctrl K  or  /", "find sessions, screens and commands"], ["?", "these keys"],
];

function Keys({ onClose }) {
  return html`<${Dialog} label="Keys" onClose=${onClose}><h2>Keys</h2>
    <dl class="keys">${KEYS.map(([key, what]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <div class="choices"><button type="button" onClick=${onClose}>Close</button></div></${Dialog}>`;
}

function Palette({ onClose, onKeys }) {
  const [words, setWords] = useState("");
  const [chosen, setChosen] = useState(0);
  const place = useRef();
  const { list } = useStore(sessions);
  const { isWorking } = conversation.get();
  // What not every search needs is loaded with the first word.
  const isSearching = words.trim().length > 1;
  const { data: tools } = useLoaded(() => (isSearching ? get("/api/tools") : Promise.resolve(null)), isSearching);
  const { data: settings } = useLoaded(() => (isSearching && me.get().scopes.includes("admin") ? get("/api/settings") : Promise.resolve(null)), isSearching);
  const entries = [
    ["New conversation", "command", newChat],
    ...(isWorking ? [["Stop the run", "command", stop]] : []),
    ...SCREENS.map(([href, label]) => [label, "screen", () => go(href)]),
    ["Keys", "command", onKeys, true],
    ["Log out", "command", logOut],
    ...list.map((one) => [titleOf(one), "session", () => go(`/chat/${one.id}`)]),
    ...(tools?.tools ?? []).map((one) => [visible(one.name), "tool", () => go("/tools", { words: one.name })]),
    ...(settings?.settings ?? []).map((one) => [visible(one.key), "setting", () => go("/settings", { words: one.key })]),
  ];
  const wanted = words.toLowerCase().replace(/^\//, "").split(/\s+/).filter(Boolean);
  const found = entries.filter(([label, kind]) => wanted.every((word) => `${label} ${kind}`.toLowerCase().includes(word))).slice(0, 12);
  const current = Math.min(chosen, found.length - 1);
  const run = (entry) => {
    if (!entry) return;
    if (!entry[3]) onClose();
    entry[2]();
  };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setChosen((current + step + found.length) % Math.max(found.length, 1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(found[current]);
    }
  };
  useEffect(() => { place.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }); }, [current]);
  return html`<${Dialog} label="Find" kind="palette" onClose=${onClose}>
    <input type="text" role="combobox" aria-label="Find sessions, screens and commands" aria-expanded="true" aria-controls="found" aria-activedescendant=${found.length ? `found-${current}` : undefined}
      autofocus placeholder="Find sessions, tools, settings and commands" value=${words} onInput=${(event) => { setWords(event.currentTarget.value); setChosen(0); }} onKeyDown=${onKey} />
    <ul id="found" role="listbox" aria-label="Found" ref=${place}>${found.map(([label, kind], n) => html`<li key=${n} id=${`found-${n}`} role="option" aria-selected=${n === current}
      onClick=${() => run(found[n])}><span>${label}</span><span class="muted">${kind}</span></li>`)}</ul>
    ${!found.length && html`<p class="muted">Nothing has these words.</p>`}</${Dialog}>`;
}

render(html`<${App} />`, document.getElementById("app"));
