// What agents remember, and the skills they follow: what one wrote by itself is marked until a person approves it.

import { html, useState } from "./vendor/preact-htm.js";
import { at, get, post } from "./api.js";
import { me } from "./questions.js";
import { announce, useLoaded, useStore } from "./state.js";
import { Output, visible } from "./text.js";

const TARGETS = { user: ["About you", "What agents know about you."], memory: ["Notes", "What agents noted about their work."] };
const BY = { agent: "an agent wrote it", approved: "an agent wrote it, you approved", external: "written in the file", recovery: "recovered" };

export function MemoryScreen() {
  const { scopes } = useStore(me);
  const { data, problem, reload } = useLoaded(() => get("/api/memory"), "");
  const [failure, setFailure] = useState("");
  const mayChange = scopes.includes("approve");
  async function act(said, path, body) {
    setFailure("");
    try {
      await post(path, body);
      announce(said);
      reload();
      return true;
    } catch (error) {
      setFailure(error.message);
      return false;
    }
  }
  const change = (said, target, operation) => act(said, "/api/memory", { target, operations: [operation] });
  return html`<div class="screen"><h1>Memory</h1>
    ${(problem || failure) && html`<p class="problem" role="alert">${visible(failure || problem)}</p>`}
    ${Object.entries(data?.memory ?? {}).map(([target, { entries, usage }]) => html`<section key=${target}><h2>${TARGETS[target]?.[0] ?? visible(target)}</h2>
      <p class="muted">${TARGETS[target]?.[1]} ${visible(usage)}</p>
      ${!entries.length && html`<p class="muted">Nothing yet. Tell an agent to remember something, or write it here.</p>`}
      <ul class="rows">${entries.map((one) => html`<li key=${one.text} class="tall"><div><p class="entry">${visible(one.text)}</p>
          ${BY[one.by] && html`<p class="muted">${BY[one.by]}${one.by === "agent" ? "; other agents read it as a quotation" : ""}</p>`}</div>
        ${mayChange && html`<div class="tools">${one.by === "agent" && html`<button type="button" class="quiet" aria-label=${`Approve: ${visible(one.text)}`}
            onClick=${() => act("Approved.", "/api/memory/approve", { target, entry: one.text })}>Approve</button>`}
          <button type="button" class="quiet deny" aria-label=${`Delete: ${visible(one.text)}`} onClick=${() => change("Deleted.", target, { action: "remove", old_text: one.text })}>Delete</button></div>`}</li>`)}</ul>
      ${mayChange && html`<${NewEntry} name=${TARGETS[target]?.[0] ?? target} onAdd=${(content) => change("Remembered.", target, { action: "add", content })} />`}</section>`)}
    <${Skills} />
  </div>`;
}

function NewEntry({ name, onAdd }) {
  const [text, setText] = useState("");
  const add = async (event) => {
    event.preventDefault();
    if (await onAdd(text.trim())) setText("");
  };
  return html`<form class="choices" onSubmit=${add}><input aria-label=${`Remember, ${name}`} placeholder="Remember…" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
    <button disabled=${!text.trim()} aria-label=${`Add to ${name}`}>Add</button></form>`;
}

function Skills() {
  const { scopes } = useStore(me);
  const { data, problem, reload } = useLoaded(() => get("/api/skills"), "");
  const [failure, setFailure] = useState("");
  const approve = async (skill) => {
    setFailure("");
    try {
      await post(at`/api/skills/${skill.name}/approve`);
      announce(`${skill.name} is approved.`);
    } catch (error) {
      setFailure(error.message);
    }
    reload();
  };
  return html`<section><h2>Skills</h2>
    ${(problem || failure) && html`<p class="problem" role="alert">${visible(failure || problem)}</p>`}
    ${data && !data.skills.length && html`<p class="muted">No skills. <code>toolcrib skills</code> shows where they come from.</p>`}
    <ul class="rows">${(data?.skills ?? []).map((one) => html`<li key=${`${one.source} ${one.name}`} class="tall"><div>
        <p class="title">${visible(one.name)} ${one.unreviewed && html`<span class="badge">not approved</span>`}</p>
        <p class="muted">${visible(one.description)}</p>
        ${one.unreviewed && html`<p class="muted">An agent wrote it. Until you approve it, agents read it as a quotation.</p>`}
        ${one.problem && html`<p class="reason">${visible(one.problem)}</p>`}${one.hidden_by && html`<p class="muted">Hidden by ${visible(one.hidden_by)}</p>`}
        ${!one.problem && !one.hidden_by && html`<${SkillText} name=${one.name} />`}</div>
      ${one.unreviewed && scopes.includes("admin") && html`<div class="tools"><button type="button" class="quiet" aria-label=${`Approve ${visible(one.name)}`} onClick=${() => approve(one)}>Approve</button></div>`}</li>`)}</ul></section>`;
}

function SkillText({ name }) {
  const [isOpen, setOpen] = useState(false);
  const { data, problem } = useLoaded(() => (isOpen ? get(at`/api/skills/${name}`) : Promise.resolve(null)), `${name} ${isOpen}`);
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Text<span class="sr"> of ${visible(name)}</span></summary>
    ${problem && html`<p class="problem" role="alert">${visible(problem)}</p>`}${data && html`<${Output} text=${data.text} />`}</details>`;
}
