// One run on a time axis: the model, tools and waiting for a person, each a bar.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { at, follow, get } from "./api.js";
import { CallDetails } from "./calls.js";
import { apply } from "./conversation.js";
import { onLink, useLoaded, useNow } from "./state.js";
import { Ago, duration, money, visible } from "./text.js";

const KINDS = { model: "Model", tool: "Tools", waiting: "Waiting for a person" };
const WRONG = ["error", "timeout", "blocked"];

export function RunScreen({ id }) {
  const { data, problem, reload } = useLoaded(() => get(at`/api/runs/${id}/timeline`), id);
  const isWorking = data?.run.state === "working";
  const [calls, setCalls] = useState({});
  useEffect(() => {
    const draft = { items: [], plan: null };
    let timer = 0;
    const show = () => {
      timer = 0;
      setCalls(Object.fromEntries(draft.items.filter((one) => one.kind === "call").map((one) => [one.key, one])));
    };
    const stop = follow(id, 0, (number, event) => {
      apply(draft, String(number), event, { isQuiet: true });
      timer ||= setTimeout(show, 100);
    }, () => { show(); reload(); });
    return () => { stop(); clearTimeout(timer); };
  }, [id]);
  const now = useNow(2000) / 1000;
  useEffect(() => { if (isWorking) reload(); }, [isWorking, now]);
  const session = data?.run.session_id;
  const others = useLoaded(() => (session ? get(`/api/runs?session=${encodeURIComponent(session)}&limit=20`) : Promise.resolve({ runs: [] })), session);
  return html`<div class="screen wide-screen"><h1>Timeline of a run</h1>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${data && html`<${Facts} run=${data.run} spans=${data.spans} now=${now} />`}
    ${data && html`<${Waterfall} run=${data.run} spans=${data.spans} now=${now} calls=${calls} />`}
    ${others.data?.runs.length > 1 && html`<nav aria-label="Runs of this session"><h2>Other runs of this session</h2><ul class="rows">${others.data.runs.filter((one) => one.id !== id).map((one) =>
      html`<li key=${one.id}><a class="title" href=${`/runs/${one.id}`} onClick=${onLink}><${Ago} at=${one.created_at} /></a><span class="muted">${one.state}${one.ended_at ? ` after ${duration((one.ended_at - one.created_at) * 1000)}` : ""}</span></li>`)}</ul></nav>`}
  </div>`;
}

function Facts({ run, spans, now }) {
  const sums = Object.entries(KINDS).map(([kind, label]) =>
    [label, spans.filter((one) => one.kind === kind).reduce((sum, one) => sum + (one.ended_at ?? now) - one.started_at, 0)]);
  return html`<p class="muted"><a href=${`/chat/${run.session_id}`} onClick=${onLink}>Its conversation</a> · started <${Ago} at=${run.created_at} /> · ${run.state}
      ${run.cost_usd > 0 ? ` · ${money(run.cost_usd)}` : ""}</p>
    ${run.problem && html`<p class="problem">${visible(run.problem)}</p>`}
    <ul class="legend">${sums.map(([label, seconds], n) => html`<li key=${label}><span class=${`swatch ${Object.keys(KINDS)[n]}`} aria-hidden="true"></span>${label} <strong>${duration(seconds * 1000)}</strong></li>`)}</ul>`;
}

function Waterfall({ run, spans, now, calls }) {
  if (!spans.length) return html`<p class="empty">Nothing has happened yet.</p>`;
  const start = run.created_at;
  const end = Math.max(run.ended_at ?? now, ...spans.map((one) => one.ended_at ?? now), start + 0.001);
  const scale = 100 / (end - start);
  return html`<ol class="waterfall">${spans.map((span, n) => {
    const from = (span.started_at - start) * scale;
    const width = Math.max(((span.ended_at ?? now) - span.started_at) * scale, 0.4);
    const item = calls[`call-${span.id}`];
    const isWrong = WRONG.includes(span.status);
    const took = duration(((span.ended_at ?? now) - span.started_at) * 1000);
    const row = html`<span class="what"><strong>${visible(span.kind === "waiting" ? "waiting" : span.name)}</strong> <span class="muted">${visible(span.summary)}</span></span>
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${`${took}, from ${duration((span.started_at - start) * 1000)} on`}>
        <rect class=${`bar ${isWrong ? "wrong" : span.kind}`} x=${from} y="1" width=${width} height="8" rx="0.4" /></svg>
      <span class="took">${took}${isWrong ? html`<span class="sr">, ${span.status}</span>` : ""}</span>`;
    return html`<li key=${n}>${item ? html`<details><summary class="row">${row}</summary><${CallDetails} item=${item} /></details>` : html`<div class="row">${row}</div>`}</li>`;
  })}</ol>`;
}
