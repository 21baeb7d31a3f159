// The list of sessions: beside the conversation, and as a screen with search.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { at, get, post, request } from "./api.js";
import { conversation } from "./conversation.js";
import { createStore, go, onLink, useLoaded, useStore } from "./state.js";
import { Ago, Dialog, count, money, visible } from "./text.js";

export const sessions = createStore({ list: [], isKnown: false, problem: "" });

const SHOWN_SESSIONS = 40; // The first load stays small; the screen and the search have the others.
let wanted = SHOWN_SESSIONS;

export async function refreshSessions(limit = wanted) {
  wanted = limit;
  try {
    const { sessions: list } = await get(`/api/sessions?limit=${limit}`);
    sessions.set({ list, isKnown: true, problem: "" });
  } catch (error) {
    sessions.set({ problem: error.message });
  }
}

export const titleOf = (session) => visible(session.title || "Conversation");

const DAY = 86_400_000;

function dayOf(at) {
  const today = new Date().setHours(0, 0, 0, 0);
  const moment = at * 1000;
  if (moment >= today) return "Today";
  if (moment >= today - DAY) return "Yesterday";
  return moment >= today - 7 * DAY ? "This week" : "Earlier";
}

export function SessionList({ onChosen }) {
  const { list, isKnown, problem } = useStore(sessions);
  const { id, isWorking } = useStore(conversation);
  const groups = new Map();
  for (const one of list) {
    const day = dayOf(one.updated_at);
    groups.set(day, [...(groups.get(day) ?? []), one]);
  }
  const choose = (event) => { onLink(event); onChosen?.(); };
  return html`<nav class="sessions" aria-label="Sessions">
    ${problem && html`<p class="muted">${problem}</p>`}
    ${isKnown && !list.length && html`<p class="muted">Your conversations appear here.</p>`}
    ${[...groups].map(([day, found]) => html`<section key=${day}><h2>${day}</h2><ul>${found.map((one) => html`<li key=${one.id}>
      <a href=${`/chat/${one.id}`} onClick=${choose} aria-current=${one.id === id ? "page" : undefined} title=${titleOf(one)}>
        ${one.parent_kind === "branch" && html`<span aria-hidden="true" title="A fork">⑂ </span>`}${titleOf(one)}
        ${one.id === id && isWorking && html`<span class="pulse" aria-hidden="true"></span>`}</a></li>`)}</ul></section>`)}
  </nav>`;
}

const FILTERS = [["Platform", (one) => one.source], ["Model", (one) => one.model], ["Day", (one) => dayOf(one.updated_at)]];

export function SessionsScreen() {
  const { list, isKnown, problem } = useStore(sessions);
  const [words, setWords] = useState("");
  const [kept, setKept] = useState({});
  const [gone, setGone] = useState(null);
  const [failure, setFailure] = useState("");
  useEffect(() => {
    refreshSessions(200);
    return () => { wanted = SHOWN_SESSIONS; };
  }, []);
  const { data: search } = useLoaded(() => (words.trim().length > 1 ? get(`/api/sessions/search?q=${encodeURIComponent(words.trim())}`) : Promise.resolve({ hits: [] })), words.trim());
  const typed = words.toLowerCase().split(/\s+/).filter(Boolean);
  const isKept = (one) => FILTERS.every(([name, of]) => !kept[name] || of(one) === kept[name]);
  const left = new Set(list.filter(isKept).map((one) => one.id));
  const hits = (search?.hits ?? []).filter((one) => !Object.values(kept).some(Boolean) || left.has(one.session_id));
  const found = list.filter((one) => isKept(one) && typed.every((word) => `${one.title} ${one.model} ${one.source} ${one.cwd}`.toLowerCase().includes(word)));
  async function attempt(work) {
    setFailure("");
    try {
      await work();
    } catch (error) {
      setFailure(error.message);
    }
    refreshSessions();
  }
  const fork = (one) => attempt(async () => go(`/chat/${(await post(at`/api/sessions/${one.id}/fork`)).id}`));
  const save = (one) => attempt(async () => {
    const { text } = await get(at`/api/sessions/${one.id}/export`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/markdown" }));
    link.download = `${(one.title || one.id).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.md`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  const remove = () => attempt(async () => {
    const { id } = gone;
    setGone(null);
    await request("DELETE", at`/api/sessions/${id}`);
    if (conversation.get().id === id) conversation.set({ id: "", session: null, items: [], plan: null });
  });
  return html`<div class="screen"><h1>Sessions</h1>
    <input type="search" aria-label="Search sessions" placeholder="Search titles and everything that was said" value=${words} onInput=${(event) => setWords(event.currentTarget.value)} />
    <div class="filters">${FILTERS.map(([name, of]) => [name, [...new Set(list.map(of))].filter(Boolean)]).filter(([name, values]) => values.length > 1 || kept[name]).map(([name, values]) => html`<select key=${name} aria-label=${name}
      onChange=${(event) => setKept({ ...kept, [name]: event.currentTarget.value })}><option value="">${name}: all</option>${values.map((one) => html`<option key=${one} value=${one} selected=${kept[name] === one}>${visible(one)}</option>`)}</select>`)}</div>
    ${(problem || failure) && html`<p class="problem" role="alert">${failure || problem}</p>`}
    ${isKnown && !found.length && !hits.length && html`<p class="empty">${list.length ? "No session has these words." : "No sessions yet. Ask something, and it appears here."}</p>`}
    <ul class="rows">${found.map((one) => html`<li key=${one.id}>
      <div><a class="title" href=${`/chat/${one.id}`} onClick=${onLink}>${one.parent_kind === "branch" ? "⑂ " : ""}${titleOf(one)}</a>
        <p class="muted"><${Ago} at=${one.updated_at} /> · ${one.message_count} messages · ${visible(one.source)}${one.model ? ` · ${visible(one.model)}` : ""}${
          one.usage.output_tokens ? ` · ${count((one.usage.input_tokens ?? 0) + one.usage.output_tokens)} tokens` : ""}${one.usage.cost_usd ? ` · ${money(one.usage.cost_usd)}` : ""}</p></div>
      <div class="tools"><button type="button" class="quiet" aria-label=${`Fork ${titleOf(one)}`} onClick=${() => fork(one)}>Fork</button>
        <button type="button" class="quiet" aria-label=${`Export ${titleOf(one)}`} onClick=${() => save(one)}>Export</button>
        <button type="button" class="quiet deny" aria-label=${`Delete ${titleOf(one)}`} onClick=${() => setGone(one)}>Delete</button></div></li>`)}</ul>
    ${hits.length > 0 && html`<section><h2>Said in</h2><ul class="rows">${hits.map((one) => html`<li key=${one.message_id}><div>
      <a class="title" href=${`/chat/${one.session_id}`} onClick=${onLink}>${titleOf(one)}</a><p class="muted clip">${visible(one.text.slice(0, 300))}</p></div></li>`)}</ul></section>`}
    ${gone && html`<${Dialog} label="Delete a session" onClose=${() => setGone(null)}>
      <h2>Delete this session?</h2><p>“${titleOf(gone)}” and its ${gone.message_count} messages will be gone, with the sessions of its subagents. This cannot be undone.</p>
      <div class="choices"><button type="button" onClick=${() => setGone(null)}>Keep it</button><button type="button" class="deny" onClick=${remove}>Delete it</button></div></${Dialog}>`}
  </div>`;
}
