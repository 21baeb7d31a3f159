// What waits for a person: approvals and questions, as cards in the conversation and as a list.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { at, get, post } from "./api.js";
import { conversation, open, refreshWaiting, waiting } from "./conversation.js";
import { announce, createStore, onLink, useLoaded, useNow, useStore } from "./state.js";
import { Ago, Diff, duration, visible } from "./text.js";

export const me = createStore({ name: "", scopes: [] });
export const loadIdentity = () => get("/api/status").then((status) => me.set({ ...status, ...status.token }), () => {});

const CHOICES = {
  once: ["Allow once", "y"], session: ["For this session", "s"], always: ["Always", "a"], deny: ["Deny", "n"],
};
const SAID = { once: "Allowed once", session: "Allowed for this session", always: "Allowed always", deny: "Denied", timeout: "Not answered in time", cancelled: "Cancelled" };
const GUARD_MS = 700; // A key that was meant for something else must not answer a card that just appeared.

function TimeLeft({ until }) {
  const left = Math.max(0, until * 1000 - useNow(1000));
  return html`<span class=${left < 30_000 ? "left soon" : "left"}>${left ? `${duration(left)} left` : "time is up"}</span>`;
}

// `item` comes from the run's events, `known` from the list of open approvals, which has the details.
export function Approval({ item, known, takesKeys = false }) {
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState("");
  const [edited, setEdited] = useState(null);
  const shownAt = useRef(Date.now());
  const asked = { ...item, ...known };
  const mayAnswer = me.get().scopes.includes("approve");
  // “Always” changes the policy, which is the admin's.
  const choices = asked.choices.filter((one) => CHOICES[one] && (one !== "always" || me.get().scopes.includes("admin")));
  const isOpen = !item.isAnswered && !busy.startsWith("done");

  async function decide(choice) {
    if (!isOpen || !mayAnswer || busy) return;
    setBusy(choice);
    setProblem("");
    try {
      const { late, run_id } = await post(at`/api/approvals/${asked.id}`, { choice, reason, ...(edited !== null && choice === "once" ? { command: edited } : {}) });
      setBusy(`done ${choice}`);
      announce(SAID[choice]);
      // Its own run is gone, after a restart for example: another one goes on from here.
      if (run_id && conversation.get().id === asked.session_id) open(asked.session_id);
      if (late && choice !== "deny") setProblem(run_id ? "The run goes on." : "The run had stopped waiting: the answer counts when it asks again.");
    } catch (error) {
      setBusy("");
      setProblem(error.message);
    }
    refreshWaiting();
  }

  useEffect(() => {
    if (!takesKeys || !isOpen) return undefined;
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || isTyping(event.target)) return;
      if (document.querySelector("dialog[open]") || Date.now() - shownAt.current < GUARD_MS) return;
      if (event.key === "e" && asked.editable) {
        event.preventDefault();
        setEdited((old) => old ?? asked.command);
      }
      const choice = Object.keys(CHOICES).find((one) => CHOICES[one][1] === event.key);
      if (choice && choices.includes(choice)) {
        event.preventDefault();
        decide(choice);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [takesKeys, isOpen, asked.id, asked.editable, reason, busy, edited]);

  if (item.isAnswered || busy.startsWith("done")) {
    const isAllowed = item.isAnswered ? item.isAllowed : !busy.endsWith("deny");
    const said = item.answer ? SAID[item.answer] ?? item.answer : SAID[busy.slice(5)];
    return html`<div class="answered ${isAllowed ? "" : "denied"}"><span aria-hidden="true">${isAllowed ? "✓" : "⊘"}</span>
      <span>${isAllowed ? said : `Denied${said && said !== "Denied" && said !== "deny" ? `: ${visible(said)}` : ""}`}</span> <code>${visible(asked.command || asked.text)}</code>
      ${problem && html`<span class="muted">${problem}</span>`}</div>`;
  }
  const dangers = asked.dangers ?? asked.reasons.map((one) => ({ reason: one, paths: [] }));
  const paths = [...new Set(dangers.flatMap((one) => one.paths))];
  const scopes = [...new Set(dangers.map((one) => one.scope).filter(Boolean))];
  return html`<section class="card" aria-label=${`Approval ${asked.code}`}>
    <header><h2>${asked.title ? `${visible(asked.title)} asks for approval` : visible(asked.text)}</h2><${TimeLeft} until=${asked.expires_at} /></header>
    ${edited !== null && html`<textarea class="command" rows="2" aria-label="Run this instead" autofocus value=${edited} onInput=${(event) => setEdited(event.currentTarget.value)}></textarea>
      <p class="muted">“Allow once” runs this text. If it is dangerous in another way, the agent asks again.</p>`}
    ${asked.command && edited === null && html`<pre class="command" tabindex="0" aria-label="Exactly this would run">${visible(asked.command)}</pre>`}
    ${asked.diff && html`<${Diff} text=${asked.diff} />`}
    <ul class="reasons">${dangers.map((one, n) => html`<li key=${n}>${one.name && html`<strong>${visible(one.name)}</strong>: `}${visible(one.reason)}</li>`)}</ul>
    <dl class="facts">
      ${asked.cwd && html`<dt>Where</dt><dd><code>${visible(asked.cwd)}</code>${asked.backend !== "local" ? ` in ${visible(asked.backend)}` : " on this machine"}</dd>`}
      ${paths.length > 0 && html`<dt>Touches</dt><dd>${paths.slice(0, 8).map((one) => html`<code key=${one}>${visible(one)}</code> `)}${paths.length > 8 ? `and ${paths.length - 8} more` : ""}</dd>`}
      ${scopes.length > 0 && html`<dt>Scope</dt><dd>“For this session” and “Always” cover this kind of call ${visible(scopes.join("; "))}.</dd>`}
      ${asked.origins?.length > 0 && html`<dt>Careful</dt><dd>${asked.origins.map((one) => html`<div key=${one}>${visible(one)}</div>`)}</dd>`}
      <dt>Who</dt><dd>${mayAnswer ? `You (${visible(me.get().name)}), or another token that may approve.` : "Only a token that may approve; yours may not."}
        <span class="muted"> Code <code>${asked.code}</code></span></dd>
    </dl>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${mayAnswer && html`<div class="choices">
      ${choices.map((one) => html`<button key=${one} type="button" class=${one === "deny" ? "deny" : ""}
        disabled=${Boolean(busy)} aria-keyshortcuts=${CHOICES[one][1]} onClick=${() => decide(one)}>${CHOICES[one][0]} <kbd>${CHOICES[one][1]}</kbd></button>`)}
      ${asked.editable && html`<button type="button" class="quiet" aria-keyshortcuts="e" onClick=${() => setEdited(edited === null ? asked.command : null)}>${edited === null ? html`Edit <kbd>e</kbd>` : "Do not edit"}</button>`}
      <input type="text" aria-label="Reason for a denial" placeholder="Reason, if you deny" value=${reason} onInput=${(event) => setReason(event.currentTarget.value)} />
    </div>`}
  </section>`;
}

export const isTyping = (target) => target instanceof Element && Boolean(target.closest("input, textarea, select, [contenteditable]"));

export function Question({ item }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const [isSent, setSent] = useState(false);
  async function answer(event, given) {
    event.preventDefault();
    if (!given.trim() || isSent) return;
    setSent(true);
    try {
      await post(at`/api/questions/${item.id}`, { text: given });
      setText(given);
    } catch (error) {
      setSent(false);
      setProblem(error.message);
    }
    refreshWaiting();
  }
  if (item.isAnswered || isSent)
    return html`<div class="answered"><span aria-hidden="true">?</span><span>${visible(item.text)}</span> <strong>${visible(item.answer ?? text)}</strong></div>`;
  return html`<section class="card" aria-label=${`Question ${item.code}`}>
    <header><h2>${visible(item.text)}</h2><${TimeLeft} until=${item.expires_at} /></header>
    ${item.choices.length > 0 && html`<div class="choices">${item.choices.map((one) => html`<button key=${one} type="button" onClick=${(event) => answer(event, one)}>${visible(one)}</button>`)}</div>`}
    <form class="choices" onSubmit=${(event) => answer(event, text)}>
      <input type="text" aria-label="Your answer" placeholder=${item.choices.length ? "Or something else" : "Your answer"} value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      <button type="submit" class="main" disabled=${!text.trim()}>Answer</button>
    </form>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </section>`;
}

const BY = { user: "a person", grant: "an earlier answer", smart: "a model", policy: "the policy" };

function Record({ waiting }) {
  const { data, problem } = useLoaded(() => get("/api/audit?limit=50"), waiting);
  const answered = (data?.decisions ?? []).filter((one) => one.choice);
  if (problem) return html`<p class="problem" role="alert">${problem}</p>`;
  if (!answered.length) return null;
  return html`<section><h2>Record</h2><ul class="rows">${answered.map((one) => html`<li key=${one.id}><div>
    <p class="title"><code>${visible(one.command || one.tool)}</code></p>
    <p class="muted"><span class=${one.choice === "deny" || one.choice === "timeout" ? "no" : "yes"}>${visible(SAID[one.choice] ?? one.choice)}</span>${one.choice in CHOICES ? ` by ${visible(BY[one.decided_by] ?? one.decided_by ?? "")}` : ""}
      ${one.answered_at ? html` <${Ago} at=${one.answered_at} />` : ""} · ${visible(one.description)}${one.reason ? ` · “${visible(one.reason)}”` : ""}</p></div>
    <a href=${`/chat/${one.session_id}`} onClick=${onLink} aria-label=${`Open the conversation of ${visible(one.command || one.tool)}`}>Open</a></li>`)}</ul></section>`;
}

export function ApprovalsScreen() {
  const { approvals, questions, isKnown } = useStore(waiting);
  useStore(me);
  useEffect(() => { refreshWaiting(); }, []);
  const all = [...approvals, ...questions].sort((one, other) => one.asked_at - other.asked_at);
  return html`<div class="screen"><h1>Approvals</h1>
    ${isKnown && !all.length && html`<p class="empty">Nothing waits for you. When an agent wants to do something dangerous, it asks here and in its conversation.</p>`}
    ${all.map((one, n) => html`<article key=${one.id} class="waiting"><p class="muted">Asked <${Ago} at=${one.asked_at} /> in <a href=${`/chat/${one.session_id}`} onClick=${onLink}>its conversation</a></p>
      ${one.kind === "approval" ? html`<${Approval} item=${one} takesKeys=${n === 0} />` : html`<${Question} item=${one} />`}</article>`)}
    <${Record} waiting=${all.length} />
  </div>`;
}
