// Settings with their defaults and where they come from, MCP servers with their states, and tokens.

import { html, useState } from "./vendor/preact-htm.js";
import { at, get, post, request } from "./api.js";
import { me } from "./questions.js";
import { announce, useLoaded, useStore } from "./state.js";
import { Ago, Dialog, visible } from "./text.js";

export function SettingsScreen({ words: first = "" }) {
  const { scopes } = useStore(me);
  const isAdmin = scopes.includes("admin");
  const { data, problem, reload } = useLoaded(() => (isAdmin ? get("/api/settings") : Promise.resolve({ settings: [] })), isAdmin);
  const [words, setWords] = useState(first);
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = (data?.settings ?? []).filter((one) => wanted.every((word) => `${one.key} ${one.origin} ${JSON.stringify(one.value)}`.toLowerCase().includes(word)));
  const groups = new Map();
  for (const one of found) {
    const group = one.key.split(".")[0];
    groups.set(group, [...(groups.get(group) ?? []), one]);
  }
  return html`<div class="screen"><h1>Settings</h1>
    <${Servers} isAdmin=${isAdmin} />
    ${isAdmin && html`<${Tokens} />`}
    ${!isAdmin && scopes.length > 0 && html`<p class="empty">Settings need a token with the scope admin.</p>`}
    ${isAdmin && html`<input type="search" aria-label="Search settings" placeholder="Search settings, for example: timeout" value=${words} onInput=${(event) => setWords(event.currentTarget.value)} />`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${[...groups].map(([name, rows]) => html`<details key=${name} class="group" open=${wanted.length > 0 || rows.some((one) => one.origin !== "default")}><summary><strong>${visible(name)}</strong> <span class="muted">${rows.length}${
      rows.some((one) => one.origin !== "default") ? `, ${rows.filter((one) => one.origin !== "default").length} set` : ""}</span></summary>
      <ul class="rows">${rows.map((one) => html`<li key=${one.key} class="tall"><${Setting} setting=${one} onChanged=${reload} /></li>`)}</ul></details>`)}
    ${data && isAdmin && !found.length && html`<p class="empty">No setting has these words.</p>`}
  </div>`;
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function Setting({ setting, onChanged }) {
  const [isEditing, setEditing] = useState(false);
  const [problem, setProblem] = useState("");
  async function attempt(work) {
    setProblem("");
    try {
      await work();
      setEditing(false);
      announce(`${setting.key} is saved.`);
      onChanged();
    } catch (error) {
      setProblem(error.message);
    }
  }
  const save = (event) => {
    event.preventDefault();
    const typed = new FormData(event.currentTarget).get("value");
    attempt(() => {
      let value = typed;
      if (typeof setting.default !== "string") {
        try {
          value = JSON.parse(typed);
        } catch {
          throw new Error("This is not valid JSON. Examples: 12, true, [\"a\", \"b\"]");
        }
      }
      return request("PUT", at`/api/settings/${setting.key}`, { value });
    });
  };
  return html`<div class="setting"><p class="title"><code>${visible(setting.key)}</code></p>
      ${isEditing
        ? html`<form class="choices" onSubmit=${save}><input name="value" aria-label=${`Value of ${setting.key}`} value=${shown(setting.value)} autofocus /><button class="main">Save</button><button type="button" onClick=${() => setEditing(false)}>Cancel</button></form>`
        : html`<p><code class="value">${visible(shown(setting.value)) || "(empty)"}</code></p>`}
      <p class="muted">${setting.origin === "default" ? "default" : `from ${visible(setting.origin)}, default ${visible(shown(setting.default)) || "(empty)"}`}</p>
      ${problem && html`<p class="problem" role="alert">${visible(problem)}</p>`}</div>
    <div class="tools">${!isEditing && html`<button type="button" class="quiet" aria-label=${`Change ${setting.key}`} onClick=${() => setEditing(true)}>Change</button>`}
      ${setting.origin === "config.yaml" && html`<button type="button" class="quiet" aria-label=${`Reset ${setting.key}`} onClick=${() => attempt(() => request("DELETE", at`/api/settings/${setting.key}`))}>Reset</button>`}</div>`;
}

function Servers({ isAdmin }) {
  const { data, reload } = useLoaded(() => get("/api/mcp"), "");
  const [problem, setProblem] = useState("");
  if (!data?.servers.length) return null;
  const reconnect = async (name) => {
    try {
      await post(at`/api/mcp/${name}/reconnect`);
    } catch (error) {
      setProblem(error.message);
    }
    reload();
  };
  return html`<section><h2>MCP servers</h2>${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <ul class="rows">${data.servers.map((one) => html`<li key=${one.name}><div><p class="title">${visible(one.name)} <span class="muted">${visible(one.state)}</span></p>
      <p class="muted">${one.tools} tools · ${visible(one.transport)}${one.since ? html` · since <${Ago} at=${one.since} />` : ""}${one.last_error ? ` · ${visible(one.last_error)}` : ""}</p></div>
      ${isAdmin && html`<button type="button" class="quiet" aria-label=${`Reconnect ${visible(one.name)}`} onClick=${() => reconnect(one.name)}>Reconnect</button>`}</li>`)}</ul></section>`;
}

const SCOPES = [["chat", "talk to the agent"], ["approve", "answer approvals"], ["admin", "change settings, jobs and tokens"], ["metrics", "read metrics"]];

function Tokens() {
  const { data, problem, reload } = useLoaded(() => get("/api/tokens"), "");
  const [isNew, setNew] = useState(false);
  const [made, setMade] = useState(null);
  const [gone, setGone] = useState(null);
  const [failure, setFailure] = useState("");
  async function attempt(work) {
    setFailure("");
    try {
      await work();
    } catch (error) {
      setFailure(error.message);
    }
    reload();
  }
  const create = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    attempt(async () => {
      setMade(await post("/api/tokens", { name: form.get("name").trim(), scopes: form.getAll("scope"), owner: form.get("owner").trim() }));
      setNew(false);
    });
  };
  return html`<section><div class="between"><h2>Tokens</h2>${!isNew && html`<button type="button" onClick=${() => setNew(true)}>New token</button>`}</div>
    <p class="muted">For other devices and programs, besides the one of the server itself.</p>
    ${(problem || failure) && html`<p class="problem" role="alert">${visible(failure || problem)}</p>`}
    ${isNew && html`<form class="try" aria-label="New token" onSubmit=${create}>
      <div class="argument"><label for="token-name">Name</label><input id="token-name" name="name" required autofocus /></div>
      <fieldset class="argument"><legend>May</legend>${SCOPES.map(([name, what]) => html`<label key=${name} class="check"><input type="checkbox" name="scope" value=${name} defaultChecked=${name === "chat"} /> ${what} <span class="muted">${name}</span></label>`)}</fieldset>
      <div class="argument"><label for="token-owner">For somebody else <span class="muted">optional</span></label><input id="token-owner" name="owner" aria-describedby="token-owner-hint" />
        <p class="muted" id="token-owner-hint">Their name. They get sessions, memories and jobs of their own, and see nothing of yours.</p></div>
      <div class="choices"><button class="main">Create</button><button type="button" onClick=${() => setNew(false)}>Cancel</button></div></form>`}
    <ul class="rows">${(data?.tokens ?? []).map((one) => html`<li key=${one.name}><div><p class="title">${visible(one.name)}</p><p class="muted">${one.scopes.join(", ")}${one.owner ? ` · of ${visible(one.owner)}` : ""}</p></div>
      <button type="button" class="quiet deny" aria-label=${`Revoke ${visible(one.name)}`} onClick=${() => setGone(one)}>Revoke</button></li>`)}</ul>
    ${made && html`<${Dialog} label="The new token" onClose=${() => setMade(null)}><h2>The token ${visible(made.name)}</h2><p>Copy it now. It is not shown again.</p><p><code class="value">${made.token}</code></p>
      <div class="choices"><button type="button" onClick=${() => navigator.clipboard?.writeText(made.token).then(() => announce("Copied."))}>Copy</button><button type="button" class="main" onClick=${() => setMade(null)}>Done</button></div></${Dialog}>`}
    ${gone && html`<${Dialog} label="Revoke a token" onClose=${() => setGone(null)}><h2>Revoke “${visible(gone.name)}”?</h2><p>Whoever uses it is cut off at once. This cannot be undone.</p>
      <div class="choices"><button type="button" onClick=${() => setGone(null)}>Keep it</button>
        <button type="button" class="deny" onClick=${() => { setGone(null); attempt(() => request("DELETE", at`/api/tokens/${gone.name}`)); }}>Revoke it</button></div></${Dialog}>`}</section>`;
}
