// The tools that the server's agents have.

import { html, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { useLoaded } from "./state.js";
import { visible } from "./text.js";

export function ToolsScreen() {
  const { data, problem } = useLoaded(() => get("/api/tools"), "");
  const [words, setWords] = useState("");
  const wanted = words.toLowerCase();
  const found = (data?.tools ?? []).filter((one) => `${one.name} ${one.toolset} ${one.description}`.toLowerCase().includes(wanted));
  const groups = new Map();
  for (const one of found) groups.set(one.toolset, [...(groups.get(one.toolset) ?? []), one]);
  return html`<div class="screen"><h1>Tools</h1>
    <input type="search" aria-label="Search tools" placeholder="Search tools" value=${words} onInput=${(event) => setWords(event.currentTarget.value)} />
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${data && !found.length && html`<p class="empty">No tool has these words.</p>`}
    ${[...groups].map(([name, tools]) => html`<section key=${name}><h2>${visible(name)}</h2><ul class="rows">${tools.map((one) => html`<li key=${one.name}>
      <div><p class="title"><code>${visible(one.name)}</code></p><p class="muted">${visible(one.description)}</p></div></li>`)}</ul></section>`)}
  </div>`;
}
