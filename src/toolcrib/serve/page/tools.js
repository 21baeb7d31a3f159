// The tools: which there are, why one is missing and what to do about it, and a form to try one through the gate.

import { html, useState } from "./vendor/preact-htm.js";
import { at, get, post } from "./api.js";
import { CallDetails } from "./calls.js";
import { refreshWaiting, waiting } from "./conversation.js";
import { Approval } from "./questions.js";
import { useLoaded, useStore } from "./state.js";
import { visible } from "./text.js";

export function ToolsScreen({ words: first = "" }) {
  const { data, problem } = useLoaded(() => get("/api/tools"), "");
  const [words, setWords] = useState(first);
  const wanted = words.toLowerCase();
  const found = (data?.tools ?? []).filter((one) => `${one.name} ${one.toolset} ${one.description}`.toLowerCase().includes(wanted));
  const groups = new Map();
  for (const one of found) groups.set(one.toolset, [...(groups.get(one.toolset) ?? []), one]);
  return html`<div class="screen"><h1>Tools</h1>
    <input type="search" aria-label="Search tools" placeholder="Search tools" value=${words} onInput=${(event) => setWords(event.currentTarget.value)} />
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${data && !found.length && html`<p class="empty">No tool has these words.</p>`}
    ${[...groups].map(([name, tools]) => html`<section key=${name}><h2>${visible(name)}</h2><ul class="rows">${tools.map((one) => html`<li key=${one.name} class="tall"><${Tool} tool=${one} /></li>`)}</ul></section>`)}
  </div>`;
}

function Tool({ tool }) {
  const [isOpen, setOpen] = useState(false);
  return html`<div class="tool"><p class="title"><code>${visible(tool.name)}</code> ${!tool.available ? html`<span class="badge">missing</span>` : !tool.usable && html`<span class="muted">not offered to the server's agents</span>`}</p>
      ${!tool.available && html`<p class="reason">${visible(tool.reason)}${tool.remedy ? html` <strong>${visible(tool.remedy)}</strong>` : ""}</p>`}
      <p class="muted">${visible(tool.description)}</p>
      ${isOpen && html`<${TryTool} tool=${tool} />`}</div>
    ${tool.available && html`<div class="tools"><button type="button" class="quiet" aria-expanded=${isOpen} aria-label=${`${isOpen ? "Close" : "Try"} ${visible(tool.name)}`} onClick=${() => setOpen(!isOpen)}>${isOpen ? "Close" : "Try"}</button></div>`}`;
}

// The call goes through the same gate as an agent's; a dangerous one shows its card here and waits.
function TryTool({ tool }) {
  const [values, setValues] = useState({});
  const [result, setResult] = useState(null);
  const [session, setSession] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const { approvals } = useStore(waiting);
  const properties = Object.entries(tool.parameters?.properties ?? {});
  const required = tool.parameters?.required ?? [];
  async function call(event) {
    event.preventDefault();
    setProblem("");
    setResult(null);
    let given;
    try {
      given = argumentsOf(properties, values);
    } catch (error) {
      return setProblem(error.message);
    }
    setBusy(true);
    try {
      let id = session;
      if (!id) {
        id = (await post("/api/sessions", { title: "Tools tried by hand" })).id;
        setSession(id);
      }
      const timer = setInterval(refreshWaiting, 1000);
      try {
        setResult(await post(at`/api/tools/${tool.name}/call`, { arguments: given, session_id: id }));
      } finally {
        clearInterval(timer);
        refreshWaiting();
      }
    } catch (error) {
      setProblem(error.message);
    } finally {
      setBusy(false);
    }
    return undefined;
  }
  const open = isBusy ? approvals.filter((one) => one.session_id === session) : [];
  const content = typeof result?.content === "string" ? result.content : JSON.stringify(result?.content, null, 2);
  return html`<form class="try" onSubmit=${call}>
    ${properties.map(([name, schema]) => html`<${Argument} key=${name} tool=${tool.name} name=${name} schema=${schema} isRequired=${required.includes(name)} value=${values[name] ?? ""}
      onValue=${(value) => setValues((old) => ({ ...old, [name]: value }))} />`)}
    <div class="choices"><button class="main" disabled=${isBusy}>${isBusy ? "Calling…" : "Call"}</button></div>
    ${open.map((one) => html`<${Approval} key=${one.id} item=${one} />`)}
    ${problem && html`<p class="problem" role="alert">${visible(problem)}</p>`}
    ${result && html`<div role="status"><p class="muted">${visible(result.status)} in ${Math.round(result.duration_ms)} ms</p><${CallDetails} item=${{ status: result.status, result: content }} /></div>`}
  </form>`;
}

function Argument({ tool, name, schema, isRequired, value, onValue }) {
  const id = `${tool}-${name}`;
  const set = (event) => onValue(event.currentTarget.value);
  const isText = schema.type === "string";
  const field = schema.enum ? html`<select id=${id} required=${isRequired} onChange=${set}><option value="">–</option>${schema.enum.map((one) => html`<option key=${one} selected=${String(one) === value}>${String(one)}</option>`)}</select>`
    : schema.type === "boolean" ? html`<select id=${id} required=${isRequired} onChange=${set}><option value="">–</option><option selected=${value === "true"}>true</option><option selected=${value === "false"}>false</option></select>`
      : schema.type === "integer" || schema.type === "number" ? html`<input id=${id} type="number" step=${schema.type === "integer" ? 1 : "any"} required=${isRequired} value=${value} onInput=${set} />`
        : html`<textarea id=${id} rows=${isText ? 1 : 2} required=${isRequired} value=${value} onInput=${set} placeholder=${isText ? "" : "JSON"}></textarea>`;
  return html`<div class="argument"><label for=${id}>${visible(name)}${isRequired ? "" : html` <span class="muted">optional</span>`}</label>${field}
    ${schema.description && html`<p class="muted">${visible(schema.description)}</p>`}</div>`;
}

function argumentsOf(properties, values) {
  const given = {};
  for (const [name, schema] of properties) {
    const text = values[name] ?? "";
    if (text === "") continue;
    if (schema.type === "string" || (schema.enum && typeof schema.enum[0] === "string")) given[name] = text;
    else {
      try {
        given[name] = JSON.parse(text);
      } catch {
        throw new Error(`${name} must be JSON, for example ["a"] or {"a": 1}.`);
      }
    }
  }
  return given;
}
