// Tokens and cost over days, models and tools. Bars are SVG; the same numbers are in tables.

import { html, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { useLoaded } from "./state.js";
import { count, duration, money, visible } from "./text.js";

const PERIODS = [7, 30, 90];
const HEIGHT = 120;

export function CostsScreen() {
  const [days, setDays] = useState(30);
  const { data, problem } = useLoaded(() => get(`/api/costs?days=${days}`), days);
  const hasCost = data?.total.cost_usd !== null && data?.total.cost_usd !== undefined;
  const tokens = (row) => row.input_tokens + row.output_tokens;
  return html`<div class="screen"><div class="between"><h1>Costs</h1>
      <div class="tools" role="group" aria-label="Period">${PERIODS.map((one) => html`<button key=${one} type="button" class="quiet" aria-pressed=${one === days} onClick=${() => setDays(one)}>${one} days</button>`)}</div></div>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${data && !data.total.requests && html`<p class="empty">Nothing was used in these days. Numbers appear after the first answer.</p>`}
    ${data?.total.requests > 0 && html`
      <dl class="figures"><div><dt>Tokens</dt><dd>${count(tokens(data.total))}</dd></div><div><dt>Requests</dt><dd>${count(data.total.requests)}</dd></div>
        <div><dt>From the cache</dt><dd>${Math.round((100 * data.total.cached_tokens) / Math.max(data.total.input_tokens, 1))} %</dd></div>
        <div><dt>Cost</dt><dd>${hasCost ? money(data.total.cost_usd) : "not known"}</dd></div></dl>
      <section><h2>By day</h2><${Days} rows=${data.by_day} days=${days} /></section>
      <section><h2>By model</h2><${Bars} rows=${data.by_model.map((one) => [one.model || "unknown", tokens(one), `${count(tokens(one))} tokens`, one.cost_usd ? money(one.cost_usd) : ""])} head=${["Model", "Tokens", "Cost"]} /></section>
      ${data.by_tool.length > 0 && html`<section><h2>By tool</h2><${Bars} rows=${data.by_tool.map((one) => [one.tool, one.calls, one.calls === 1 ? "1 call" : `${one.calls} calls`, one.seconds ? duration(one.seconds * 1000) : ""])} head=${["Tool", "Calls", "Time"]} /></section>`}`}
  </div>`;
}

const dayName = (date) => `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}`;

function Days({ rows, days }) {
  const byDay = new Map(rows.map((one) => [one.day, one]));
  const all = [...Array(days)].map((_, n) => {
    const date = new Date();
    date.setDate(date.getDate() - (days - 1 - n));
    return { day: dayName(date), ...(byDay.get(dayName(date)) ?? { input_tokens: 0, output_tokens: 0, requests: 0 }) };
  });
  const most = Math.max(...all.map((one) => one.input_tokens + one.output_tokens), 1);
  const width = 700 / days;
  return html`<svg class="days" viewBox=${`0 0 700 ${HEIGHT + 22}`} role="img" aria-label=${`Tokens by day; most: ${count(most)}`}>
      ${all.map((one, n) => {
        const written = (one.output_tokens / most) * HEIGHT, read = (one.input_tokens / most) * HEIGHT;
        return html`<g key=${one.day}><title>${one.day}: ${count(one.input_tokens)} in, ${count(one.output_tokens)} out</title>
          <rect class="base" x=${n * width + 1} y=${HEIGHT - 1} width=${Math.max(width - 2, 1)} height="1" />
          <rect class="read" x=${n * width + 1} y=${HEIGHT - read} width=${Math.max(width - 2, 1)} height=${read} />
          <rect class="written" x=${n * width + 1} y=${HEIGHT - read - written} width=${Math.max(width - 2, 1)} height=${written} /></g>`;
      })}
      <text x="0" y=${HEIGHT + 16}>${all[0].day}</text><text x="700" y=${HEIGHT + 16} text-anchor="end">today</text><text x="0" y="12">${count(most)}</text></svg>
    <details><summary class="muted">As a table</summary><div class="wide" tabindex="0" role="region" aria-label="Tokens by day"><table><thead><tr><th>Day</th><th>In</th><th>Out</th><th>Requests</th><th>Cost</th></tr></thead>
      <tbody>${rows.map((one) => html`<tr key=${one.day}><td>${one.day}</td><td>${count(one.input_tokens)}</td><td>${count(one.output_tokens)}</td><td>${one.requests}</td><td>${one.cost_usd ? money(one.cost_usd) : "–"}</td></tr>`)}</tbody></table></div></details>`;
}

function Bars({ rows, head }) {
  const most = Math.max(...rows.map((one) => one[1]), 1);
  return html`<div class="wide" tabindex="0" role="region" aria-label=${head[0]}><table class="bars"><thead><tr>${head.map((one) => html`<th key=${one}>${one}</th>`)}<th><span class="sr">Share</span></th></tr></thead>
    <tbody>${rows.map(([name, size, text, more]) => html`<tr key=${name}><td>${visible(name)}</td><td>${text}</td><td>${more || "–"}</td>
      <td><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="read" width=${(100 * size) / most} height="8" rx="1" /></svg></td></tr>`)}</tbody></table></div>`;
}
