// The board: columns with the cards that agents and people work on.

import { html, useState } from "./vendor/preact-htm.js";
import { at, get, post, request } from "./api.js";
import { me } from "./questions.js";
import { announce, useLoaded, useStore } from "./state.js";
import { Moment, visible } from "./text.js";

const COLUMNS = { triage: "To describe", todo: "Waiting", ready: "Ready", running: "In progress", blocked: "Blocked", done: "Done", archived: "Archived" };

export function BoardScreen() {
  const { data, problem, reload } = useLoaded(() => get("/api/board"), "");
  const { scopes } = useStore(me);
  const [failure, setFailure] = useState("");
  const [isNew, setNew] = useState(false);
  const mayWrite = scopes.includes("approve");
  const attempt = async (work, said) => {
    setFailure("");
    try {
      await work();
      announce(said);
      reload();
      return true;
    } catch (error) {
      setFailure(error.message);
      return false;
    }
  };
  const cards = data?.cards ?? [];
  const shown = (data?.columns ?? []).filter((one) => cards.some((card) => card.status === one));
  return html`<div class="screen wide-screen"><div class="between"><h1>Board</h1>${mayWrite && !isNew && html`<button type="button" onClick=${() => setNew(true)}>New card</button>`}</div>
    ${isNew && html`<${CardForm} attempt=${attempt} onDone=${() => setNew(false)} />`}
    ${(problem || failure) && html`<p class="problem" role="alert">${visible(failure || problem)}</p>`}
    ${data && !cards.length && html`<p class="empty">No cards yet. ${mayWrite ? "Make one here, or ask" : "Ask"} the agent to put its work on the board.</p>`}
    <div class="board">${shown.map((column) => html`<section key=${column} aria-label=${COLUMNS[column]}><h2>${COLUMNS[column]} <span class="muted">${cards.filter((one) => one.status === column).length}</span></h2>
      <ul class="plain">${cards.filter((one) => one.status === column).map((card) => html`<li key=${card.id}><${BoardCard} card=${card} columns=${data.columns} mayWrite=${mayWrite} attempt=${attempt} /></li>`)}</ul></section>`)}</div></div>`;
}

function BoardCard({ card, columns, mayWrite, attempt }) {
  const [isOpen, setOpen] = useState(false);
  const title = visible(card.title);
  const move = (event) => attempt(() => request("PATCH", at`/api/board/${card.id}`, { status: event.target.value }), `${title} is in ${COLUMNS[event.target.value]}.`);
  return html`<article class="board-card"><details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary class="title">${title}</summary>
      ${isOpen && html`<${CardDetails} card=${card} mayWrite=${mayWrite} attempt=${attempt} />`}</details>
    ${card.reason && html`<p class="problem">${visible(card.reason)}</p>`}
    <p class="muted">${card.assignee ? `${visible(card.assignee)} · ` : ""}<${Moment} at=${card.updated_at} /></p>
    ${mayWrite && html`<select aria-label=${`Column of ${title}`} value=${card.status} onChange=${move}>${columns.map((one) => html`<option key=${one} value=${one}>${COLUMNS[one]}</option>`)}</select>`}</article>`;
}

function CardDetails({ card, mayWrite, attempt }) {
  const { data, problem, reload } = useLoaded(() => get(at`/api/board/${card.id}`), card.updated_at);
  const [text, setText] = useState("");
  const say = async (event) => {
    event.preventDefault();
    if (await attempt(() => post(at`/api/board/${card.id}/comments`, { body: text }), "The comment is on the card.")) {
      setText("");
      reload();
    }
  };
  if (problem) return html`<p class="problem" role="alert">${visible(problem)}</p>`;
  if (!data) return html`<p class="muted">Loading…</p>`;
  return html`<div class="card-text">${data.body && html`<p class="text">${visible(data.body)}</p>`}
    ${data.summary && html`<p class="text">${visible(data.summary)}</p>`}
    ${[["Needs", data.parents], ["Then", data.children]].map(([label, list]) => list.length > 0 && html`<p key=${label} class="muted">${label}: ${list.map((one) => visible(one.title)).join(", ")}</p>`)}
    ${data.comments.map((one, n) => html`<p key=${n} class="text"><span class="muted">${visible(one.name || one.by)}, <${Moment} at=${one.at} />:</span> ${visible(one.body)}</p>`)}
    ${mayWrite && html`<form onSubmit=${say}><label for=${`say-${card.id}`}>Comment</label><textarea id=${`say-${card.id}`} rows="2" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      <button disabled=${!text.trim()}>Comment</button></form>`}</div>`;
}

function CardForm({ attempt, onDone }) {
  const [values, setValues] = useState({ title: "", body: "", assignee: "" });
  const change = (name) => (event) => setValues((old) => ({ ...old, [name]: event.target.value }));
  const save = async (event) => {
    event.preventDefault();
    if (await attempt(() => post("/api/board", values), `${values.title} is on the board.`)) onDone();
  };
  return html`<form class="try" aria-label="New card" onSubmit=${save}>
    <div class="argument"><label for="card-title">Title</label><input id="card-title" required maxlength="300" value=${values.title} onInput=${change("title")} /></div>
    <div class="argument"><label for="card-body">What is to be done</label><textarea id="card-body" rows="3" value=${values.body} onInput=${change("body")}></textarea></div>
    <div class="argument"><label for="card-assignee">Who does it</label><input id="card-assignee" value=${values.assignee} onInput=${change("assignee")} /></div>
    <div class="choices"><button class="main">Save</button><button type="button" onClick=${onDone}>Cancel</button></div></form>`;
}
