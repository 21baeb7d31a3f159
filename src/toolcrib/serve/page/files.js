// What a session changed in files, and how to undo it.

import { html, useState } from "./vendor/preact-htm.js";
import { at, get, post } from "./api.js";
import { announce, onLink, useLoaded } from "./state.js";
import { Ago, Diff, visible } from "./text.js";

export function FilesScreen({ id }) {
  const { data, problem, reload } = useLoaded(() => get(at`/api/sessions/${id}/changes`), id);
  const [preview, setPreview] = useState(null);
  const [failure, setFailure] = useState("");
  async function attempt(body) {
    setFailure("");
    try {
      const done = await post(at`/api/sessions/${id}/undo`, body);
      if (body.dry_run) setPreview({ body, ...done });
      else {
        setPreview(null);
        announce(`${done.files.length} files are as they were.`);
        reload();
      }
    } catch (error) {
      setFailure(error.message);
    }
  }
  const calls = [...(data?.calls ?? [])].sort((one, other) => other.at - one.at);
  return html`<div class="screen"><h1>Files</h1>
    <p class="muted">What <a href=${`/chat/${id}`} onClick=${onLink}>this conversation</a> changed, and how to undo it.</p>
    ${(problem || failure) && html`<p class="problem" role="alert">${failure || problem}</p>`}
    ${data && !data.files.length && !calls.length && html`<p class="empty">This conversation has changed no files.</p>`}
    ${data?.files.length > 0 && html`<section><h2>Changed files</h2><ul class="plain">${data.files.map((one) => html`<li key=${one.path}><${ChangedFile} id=${id} file=${one} /></li>`)}</ul></section>`}
    ${calls.length > 0 && html`<section><div class="between"><h2>Calls, newest first</h2>
      ${calls.some((one) => one.undone) && html`<button type="button" onClick=${() => attempt({ action: "redo", dry_run: true })}>Redo…</button>`}</div>
      <ul class="rows">${calls.map((one) => html`<li key=${one.call_id}><div><p class="title">${visible(one.tool)} <code>${visible(one.summary)}</code></p>
        <p class="muted"><${Ago} at=${one.at} /> · ${one.files.length === 1 ? "1 file" : `${one.files.length} files`}${one.undone ? " · undone" : ""}${one.notes.map((note) => ` · ${visible(note)}`)}</p></div>
        ${one.can_be_undone && html`<button type="button" aria-label=${`Undo… back to ${visible(one.summary)}`} onClick=${() => attempt({ to: one.call_id, dry_run: true })}>Undo…</button>`}</li>
        ${preview && (preview.body.to === one.call_id || (preview.body.action === "redo" && one === calls[0])) && html`<li key="preview" class="preview"><${Preview} preview=${preview} onDo=${attempt} onLeave=${() => setPreview(null)} /></li>`}`)}</ul></section>`}
  </div>`;
}

const WORDS = { restored: "comes back as it was", removed: "goes away", refused: "stays" };

function Preview({ preview, onDo, onLeave }) {
  const refused = preview.files.filter((one) => one.what === "refused");
  const verb = preview.body.action === "redo" ? "Redo" : "Undo";
  return html`<section class="card" aria-label="Preview"><h2>This would happen</h2>
    ${preview.files.length ? html`<ul class="plain">${preview.files.map((one) => html`<li key=${one.path}><code>${visible(one.path)}</code> <strong>${WORDS[one.what] ?? visible(one.what)}</strong>${one.reason ? `: ${visible(one.reason)}` : ""}</li>`)}</ul>`
      : html`<p>Nothing: there is nothing to ${verb.toLowerCase()}.</p>`}
    <div class="choices"><button type="button" onClick=${onLeave}>Leave it</button>
      ${preview.files.length > refused.length && html`<button type="button" class="main" onClick=${() => onDo({ ...preview.body, dry_run: false })}>${verb}</button>`}
      ${refused.length > 0 && html`<button type="button" class="deny" onClick=${() => onDo({ ...preview.body, dry_run: false, force: true })}>${verb} all, also what changed since</button>`}</div></section>`;
}

function ChangedFile({ id, file }) {
  const [diff, setDiff] = useState("");
  const load = async (event) => {
    if (!event.currentTarget.open || diff) return;
    try {
      setDiff((await get(`${at`/api/sessions/${id}/diff`}?path=${encodeURIComponent(file.path)}`)).diff || "There is no text to compare.");
    } catch (error) {
      setDiff(error.message);
    }
  };
  return html`<details class="file" onToggle=${load}><summary><code>${visible(file.path)}</code> <span class="muted">${visible(file.kind)}${file.during ? ", perhaps by something else" : ""}</span></summary>
    ${diff && html`<${Diff} text=${diff} />`}</details>`;
}
