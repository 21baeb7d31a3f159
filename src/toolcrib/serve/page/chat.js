// The conversation: what was said and done, and where a person writes.

import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { at, post, request } from "./api.js";
import { Call, Plan } from "./calls.js";
import { conversation, open, say, stop, waiting } from "./conversation.js";
import { Approval, Question, me } from "./questions.js";
import { refreshSessions } from "./sessions.js";
import { announce, go, onLink, useStore } from "./state.js";
import { Icon, Images, Markdown, copyText, count, money, visible } from "./text.js";

const MAX_FILES = 8;
const MAX_BYTES = 5_000_000;
const TEXT_FILE = /^text\/|json|xml|yaml|javascript|x-sh|toml|csv/;

export function ChatScreen({ id, onPalette }) {
  const now = useStore(conversation);
  useEffect(() => {
    // A question that was just asked made this session: it is open already.
    if (id !== conversation.get().id) open(id);
  }, [id]);
  useEffect(() => {
    if (now.id && !id && now.sending === null && !now.isWorking) return;
    if (now.id && now.id !== id && !id) go(`/chat/${now.id}`, { isReplacing: true });
  }, [now.id]);
  const isEmpty = !now.items.length && !now.sending && !now.isLoading;
  return html`<div class="chat">
    <${ChatHeader} session=${now.session} run=${now.run} />
    <${Transcript} now=${now} isEmpty=${isEmpty} />
    <${Composer} now=${now} onPalette=${onPalette} />
    <${Status} session=${now.session} />
  </div>`;
}

function ChatHeader({ session, run }) {
  const [isRenaming, setRenaming] = useState(false);
  const [problem, setProblem] = useState("");
  useEffect(() => { setRenaming(false); setProblem(""); }, [session?.id]);
  if (!session) return html`<h1 class="sr">New conversation</h1>`;
  async function attempt(work) {
    setProblem("");
    try {
      await work();
    } catch (error) {
      setProblem(error.message);
    }
  }
  const rename = (event) => {
    event.preventDefault();
    const title = new FormData(event.currentTarget).get("title").trim();
    attempt(async () => {
      const changed = await request("PATCH", at`/api/sessions/${session.id}`, { title });
      conversation.set({ session: changed });
      setRenaming(false);
      refreshSessions();
    });
  };
  const fork = () => attempt(async () => {
    const made = await post(at`/api/sessions/${session.id}/fork`);
    refreshSessions();
    announce("You are in a copy of the conversation; the original stays as it is.");
    go(`/chat/${made.id}`);
  });
  return html`<header class="chat-header">
    ${isRenaming
      ? html`<form class="rename" onSubmit=${rename}><input name="title" aria-label="Title" value=${session.title} maxlength="200" autofocus
          onKeyDown=${(event) => event.key === "Escape" && setRenaming(false)} /><button class="main">Save</button></form>`
      : html`<h1>${visible(session.title || "Conversation")}</h1>
        <div class="tools"><button type="button" class="quiet" onClick=${() => setRenaming(true)}>Rename</button>
        <button type="button" class="quiet" onClick=${fork}>Fork</button>
        <a class="quiet" href=${`/files/${session.id}`} onClick=${onLink}>Files</a>
        ${run && html`<a class="quiet" href=${`/runs/${run.id}`} onClick=${onLink}>Timeline</a>`}</div>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </header>`;
}

// Stays at the end while the reader is there; otherwise nothing moves, and a button leads to what is new.
function Transcript({ now, isEmpty }) {
  const scroller = useRef();
  const inner = useRef();
  const isAtEnd = useRef(true);
  const [hasNew, setNew] = useState(false);
  const toEnd = () => { scroller.current.scrollTop = scroller.current.scrollHeight; };
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => (isAtEnd.current ? toEnd() : setNew(true)));
    observer.observe(inner.current);
    observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => { isAtEnd.current = true; setNew(false); toEnd(); }, [now.id, now.sending !== null]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = scroller.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 60;
    if (isAtEnd.current) setNew(false);
  };
  const { approvals, questions } = useStore(waiting);
  useStore(me);
  const shown = new Set(now.items.filter((one) => one.isQuestion).map((one) => one.id));
  const left = now.id && !now.isWorking ? [...approvals, ...questions].filter((one) => one.session_id === now.id && !shown.has(one.id)) : [];
  const firstOpen = now.items.find((one) => one.kind === "approval" && !one.isAnswered)?.key;
  return html`<div class="scroller" ref=${scroller} onScroll=${onScroll} tabindex="0" role="region" aria-label="Conversation">
    <div class="column" ref=${inner}>
      ${now.plan && html`<${Plan} items=${now.plan} />`}
      ${isEmpty && !now.problem && html`<${Welcome} />`}
      ${now.isLoading && html`<p class="muted" role="status">Loading the conversation…</p>`}
      ${now.problem && html`<p class="problem" role="alert">${now.problem} <button type="button" onClick=${() => open(now.id)}>Try again</button></p>`}
      ${now.items.map((item, n) => html`<${Item} key=${item.key} item=${item} known=${approvals.find((one) => one.id === item.id)} takesKeys=${item.key === firstOpen}
        isLast=${now.items[n + 1]?.kind !== "call"} />`)}
      ${left.map((one, n) => one.kind === "approval"
        ? html`<${Approval} key=${one.id} item=${one} takesKeys=${!firstOpen && n === 0} />` : html`<${Question} key=${one.id} item=${one} />`)}
      ${now.sending && html`<div class="message user pending"><p>${now.sending.text}</p></div>`}
      ${now.isWorking && !firstOpen && html`<p class="working"><span class="pulse" aria-hidden="true"></span>Working…</p>`}
    </div>
    ${hasNew && html`<button type="button" class="new-below" onClick=${() => { toEnd(); setNew(false); }}>New below ↓</button>`}
  </div>`;
}

// A stream changes one item many times a second; the others are left alone.
class Item extends Component {
  shouldComponentUpdate(next) {
    return ["item", "known", "takesKeys", "isLast"].some((name) => next[name] !== this.props[name]);
  }

  render({ item, known, takesKeys, isLast }) {
    switch (item.kind) {
      case "user": return html`<${UserMessage} item=${item} />`;
      case "answer": return html`<${Answer} item=${item} isLast=${isLast} />`;
      case "call": return html`<${Call} item=${item} />`;
      case "approval": return html`<${Approval} item=${item} known=${known} takesKeys=${takesKeys} />`;
      case "question": return html`<${Question} item=${item} />`;
      case "child": return html`<p class="notice">Subagent, ${item.state}: ${visible(item.goal)}${item.what ? ` · ${visible(item.what)}` : ""}</p>`;
      case "end": return html`<p class=${item.outcome === "interrupted" ? "notice" : "problem"} role="status">${visible(item.problem)}</p>`;
      default: return html`<p class="notice">${visible(item.text)}</p>`;
    }
  }
}

const ATTACHED = /\n\n<attached name="([^"\n]*)">\n([\s\S]*?)\n<\/attached>/g;

function UserMessage({ item }) {
  const files = [...item.text.matchAll(ATTACHED)].map(([, name, text]) => ({ name, text }));
  return html`<div class="message user"><span class="sr">You: </span><p>${item.text.replace(ATTACHED, "")}</p>
    ${files.map((one) => html`<details class="file" key=${one.name}><summary>${visible(one.name)}</summary><pre tabindex="0">${visible(one.text)}</pre></details>`)}
    <${Images} images=${item.images} /></div>`;
}

function Answer({ item, isLast }) {
  const [copied, setCopied] = useState("");
  return html`<article class="message answer" aria-label="Answer">
    ${item.reasoning && html`<details class="reasoning"><summary>Reasoning</summary><p>${item.reasoning}</p></details>`}
    <${Markdown} text=${item.text} />
    <${Images} images=${item.images} />
    ${!item.isOpen && item.text && isLast && html`<button type="button" class="quiet small copy"
      onClick=${() => copyText(item.text, (done) => setCopied(done ? "Copied" : "Cannot copy"))}>${copied || "Copy"}</button>`}
  </article>`;
}

function Welcome() {
  const ask = (text) => () => { draftInto(text); };
  return html`<div class="welcome"><h2>What shall we do?</h2>
    <p class="muted">The agent works with its tools on this server, and asks before it does anything dangerous.</p>
    <ul>${["What is in this folder?", "Which of my files changed today?", "Write a small script that renames photos by date."].map((one) =>
      html`<li key=${one}><button type="button" onClick=${ask(one)}>${one}</button></li>`)}</ul></div>`;
}

let draftInto = () => {};

function Composer({ now, onPalette }) {
  const place = `toolcrib.draft.${now.id}`;
  const [text, setText] = useState(localStorage.getItem(place) ?? "");
  const [files, setFiles] = useState([]);
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const area = useRef();
  const picker = useRef();
  const kept = useRef(place);
  useEffect(() => {
    if (kept.current === place) return;
    kept.current = place;
    setText(localStorage.getItem(place) ?? "");
    setProblem("");
  }, [place]);
  const write = (value) => {
    setText(value);
    if (value) localStorage.setItem(place, value);
    else localStorage.removeItem(place);
  };
  draftInto = (value) => { write(value); area.current.focus(); };
  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight, innerHeight * 0.4)}px`;
  }, [text, now.isWorking]);
  useEffect(() => { if (matchMedia("(min-width: 760px)").matches) area.current.focus(); }, [now.id]);

  async function send() {
    const given = text.trim();
    if (!given || isBusy) return;
    setBusy(true);
    setProblem("");
    try {
      write("");
      const id = await say(given, now.isWorking ? [] : files);
      if (!now.isWorking) setFiles([]);
      if (!now.id && id) {
        localStorage.removeItem(place);
        go(`/chat/${id}`, { isReplacing: true });
      }
      refreshSessions();
    } catch (error) {
      // The text comes back; what was typed meanwhile stays behind it.
      write(area.current.value ? `${given}\n${area.current.value}` : given);
      setProblem(error.message);
    } finally {
      setBusy(false);
    }
  }

  async function halt() {
    try {
      await stop();
    } catch (error) {
      setProblem(error.message);
    }
  }

  async function attach(list) {
    setProblem("");
    const read = [];
    for (const file of [...list].slice(0, MAX_FILES - files.length)) {
      if (file.size > MAX_BYTES) setProblem(`${file.name} is larger than 5 MB; attach a smaller part.`);
      else if (file.type.startsWith("image/") || TEXT_FILE.test(file.type) || !file.type) read.push(await contentOf(file));
      else setProblem(`${file.name} is neither an image nor text; put it into a folder that the agent can read.`);
    }
    setFiles((old) => [...old, ...read]);
  }

  const onKey = (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape") area.current.blur();
    else if (event.key === "/" && !text) {
      event.preventDefault();
      onPalette();
    }
  };
  const onPaste = (event) => {
    const given = [...event.clipboardData.files];
    if (!given.length) return;
    event.preventDefault();
    attach(given);
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}
      onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => { event.preventDefault(); attach(event.dataTransfer.files); }}>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${files.length > 0 && html`<ul class="files" aria-label="Attached">${files.map((one, n) => html`<li key=${n}>${visible(one.name)}
      <button type="button" class="quiet small" aria-label=${`Remove ${one.name}`} onClick=${() => setFiles(files.filter((_, other) => other !== n))}>×</button></li>`)}</ul>`}
    <div class="field">
      <button type="button" class="quiet icon" aria-label="Attach files" title="Attach files" disabled=${now.isWorking} onClick=${() => picker.current.click()}><${Icon} name="add" /></button>
      <input ref=${picker} type="file" multiple hidden tabindex="-1" aria-hidden="true" onChange=${(event) => { attach(event.currentTarget.files); event.currentTarget.value = ""; }} />
      <textarea ref=${area} rows="1" aria-label="Message" value=${text} onInput=${(event) => write(event.currentTarget.value)} onKeyDown=${onKey} onPaste=${onPaste}
        placeholder=${now.isWorking ? "Steer the agent" : "Ask, or / for commands"}></textarea>
      ${now.isWorking && html`<button type="button" class="stop" onClick=${halt}>Stop</button>`}
      ${(!now.isWorking || text.trim()) && html`<button type="submit" class="main" disabled=${!text.trim() || isBusy}>${now.isWorking ? "Steer" : "Send"}</button>`}
    </div>
  </form>`;
}

async function contentOf(file) {
  if (!file.type.startsWith("image/")) return { name: file.name, text: await file.text() };
  const image = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return { name: file.name, image };
}

const shortened = (path) => path.split("/").slice(-2).join("/");

function Status({ session }) {
  const { mode } = useStore(me);
  if (!session) return html`<footer class="status"></footer>`;
  const { usage } = session;
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  return html`<footer class="status" aria-label="Status">
    <span title="Model">${visible(session.model || "no model yet")}</span>
    ${mode && html`<span title="Mode">${visible(mode)}</span>`}
    ${tokens > 0 && html`<span title=${`${usage.input_tokens ?? 0} in, ${usage.output_tokens ?? 0} out`}>${count(tokens)} tokens</span>`}
    ${usage.cost_usd > 0 && html`<span title="Cost of this session">${money(usage.cost_usd)}</span>`}
    ${session.cwd && html`<span class="folder" title=${session.cwd}>${visible(shortened(session.cwd))}</span>`}
  </footer>`;
}
