// Tool calls: one line each, which opens to what was asked and what came back. And the plan.

import { html, useState } from "./vendor/preact-htm.js";
import { useNow } from "./state.js";
import { Diff, Images, Output, duration, visible } from "./text.js";

const STATES = {
  running: ["running", "…"], planned: ["waiting to run", "·"], ok: ["done", "✓"], error: ["failed", "✕"], timeout: ["timed out", "✕"],
  odd: ["done, with an exit code", "!"], blocked: ["not allowed", "⊘"], cancelled: ["interrupted", "–"],
};

export function Call({ item }) {
  const [isOpen, setOpen] = useState(false);
  const [word, mark] = STATES[item.exit ? "odd" : item.status] ?? [item.status, "?"];
  const reason = item.status === "error" || item.status === "timeout" || item.status === "blocked" ? reasonOf(item) : item.exit ? `exit code ${item.exit}` : "";
  return html`<div class="step"><details class="call ${item.exit ? "odd" : item.status}" open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>
      <span class="mark" aria-hidden="true">${mark}</span>
      <span class="sr">${word}: </span>
      <span class="name">${visible(item.name)}</span>
      <span class="main">${visible(item.summary ?? "")}</span>
      <span class="took">${item.status === "running" ? html`<${Running} since=${item.startedAt} />` : item.duration ? duration(item.duration) : ""}</span>
      ${reason && html`<span class="reason">${visible(reason)}</span>`}
    </summary>
    ${isOpen && html`<${CallDetails} item=${item} />`}
  </details>
  ${item.status === "running" && item.output && !isOpen && html`<div class="live"><${Output} text=${lastLines(item.output, 4)} isLive /></div>`}
  ${item.images?.length > 0 && html`<${Images} images=${item.images} />`}</div>`;
}

const lastLines = (text, n) => text.replace(/\n$/, "").split("\n").slice(-n).join("\n");

function Running({ since }) {
  const now = useNow(1000);
  const ms = now - since;
  return ms > 1500 ? duration(ms) : "";
}

export function CallDetails({ item }) {
  const given = parsed(item.arguments);
  const result = parsed(item.result);
  return html`<div class="call-body">
    ${given && typeof given === "object" ? html`<${Fields} values=${given} />` : item.arguments && html`<${Output} label="Arguments" text=${item.arguments} />`}
    ${item.edited && html`<${Output} label="Changed by a person to" text=${item.edited} />`}
    ${item.progress && item.status === "running" && html`<p class="muted">${visible(item.progress)}</p>`}
    ${item.status === "running" && item.output && html`<${Output} label=${`Output so far: ${item.lines} lines`} text=${item.output} isLive />`}
    ${item.result !== undefined && item.result !== "" && html`<${Result} text=${item.result} value=${result} isWrong=${item.status === "error"} />`}
  </div>`;
}

const isShort = (value) => (typeof value === "string" ? !value.includes("\n") && value.length < 160 : typeof value !== "object");

function Fields({ values }) {
  const entries = Object.entries(values);
  if (!entries.length) return null;
  return html`<dl class="fields">${entries.map(([name, value]) => html`<dt key=${name}>${visible(name)}</dt><dd>${
    isShort(value) ? html`<code>${visible(value)}</code>`
      : html`<${Output} text=${typeof value === "string" ? value : JSON.stringify(value, null, 2)} />`}</dd>`)}</dl>`;
}

// Results are JSON for the model; people want the output, the error and the diff.
function Result({ text, value, isWrong }) {
  if (!value || typeof value !== "object" || Array.isArray(value)) return html`<${Output} label="Result" text=${text} isWrong=${isWrong} />`;
  const { output, stdout, content, diff, error, ...rest } = value;
  const main = [output, stdout, content].find((one) => typeof one === "string" && one);
  const facts = Object.entries(rest).filter(([, one]) => one !== "" && one !== null && !(Array.isArray(one) && !one.length));
  return html`
    ${typeof error === "string" && error && html`<${Output} label="Error" text=${error} isWrong />`}
    ${main && html`<${Output} label="Output" text=${main} />`}
    ${typeof diff === "string" && diff && html`<${Diff} text=${diff} />`}
    ${facts.length > 0 && html`<${Fields} values=${Object.fromEntries(facts)} />`}`;
}

function reasonOf(item) {
  const value = parsed(item.result);
  const error = item.error || (value && typeof value === "object" && typeof value.error === "string" ? value.error : "");
  return error.split("\n")[0].slice(0, 300);
}

function parsed(text) {
  if (typeof text !== "string" || !/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const DONE = ["completed", "cancelled"];
const MARKS = { pending: "○", in_progress: "◐", completed: "●", cancelled: "–" };

export function Plan({ items }) {
  const done = items.filter((one) => DONE.includes(one.status)).length;
  const isOver = done === items.length;
  const current = items.find((one) => one.status === "in_progress") ?? items.find((one) => one.status === "pending");
  return html`<details class="plan" open=${!isOver} key=${isOver ? "done" : "open"}>
    <summary><strong>Plan</strong> <span class="muted">${done} of ${items.length} done${isOver || !current ? "" : `, now: ${visible(current.content)}`}</span>
      <progress value=${done} max=${items.length} aria-label="Plan">${done}</progress></summary>
    <ol tabindex="0">${items.map((one) => html`<li key=${one.id} class=${one.status}>
      <span aria-hidden="true">${MARKS[one.status] ?? "○"}</span><span class="sr">${one.status.replace("_", " ")}: </span>${visible(one.content)}</li>`)}</ol>
  </details>`;
}
