// Jobs with their next and last runs, and background processes with their output.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { at, get, post } from "./api.js";
import { onLink, useLoaded, useNow } from "./state.js";
import { Moment, Output, visible } from "./text.js";

const DOTS = { ok: "good", failed: "bad", timed_out: "bad", lost: "bad" };

export function JobsScreen() {
  const { data, problem, reload } = useLoaded(() => get("/api/jobs"), "");
  const [failure, setFailure] = useState("");
  const act = async (job, what) => {
    setFailure("");
    try {
      await post(at`/api/jobs/${job.job_id}/${what}`);
    } catch (error) {
      setFailure(error.message);
    }
    reload();
  };
  return html`<div class="screen"><h1>Jobs</h1>
    ${(problem || failure) && html`<p class="problem" role="alert">${failure || problem}</p>`}
    ${data && !data.has_scheduler && data.jobs.length > 0 && html`<p class="problem">No scheduler is running, so no job starts by itself. Run <code>toolcrib cron serve</code>.</p>`}
    ${data && !data.jobs.length && html`<p class="empty">No jobs yet. Ask the agent for something “every morning at nine”, or run <code>toolcrib cron create</code>.</p>`}
    <ul class="rows">${(data?.jobs ?? []).map((job) => html`<li key=${job.job_id} class="tall"><div>
        <p class="title">${visible(job.name)} ${job.state !== "active" && html`<span class="badge">${visible(job.state)}</span>`}</p>
        <p>${visible(job.meaning || job.schedule)}</p>
        <p class="muted">${job.next_runs.length ? html`Next: <${Moment} at=${job.next_runs[0]} />${job.next_runs[1] ? html`, then <${Moment} at=${job.next_runs[1]} />` : ""}` : "No next run"}</p>
        <${LastRuns} job=${job} /></div>
      <div class="tools"><button type="button" class="quiet" aria-label=${`Run now: ${visible(job.name)}`} onClick=${() => act(job, "run")}>Run now</button>
        <button type="button" class="quiet" aria-label=${`${job.state === "paused" ? "Resume" : "Pause"} ${visible(job.name)}`} onClick=${() => act(job, job.state === "paused" ? "resume" : "pause")}>${job.state === "paused" ? "Resume" : "Pause"}</button></div></li>`)}</ul>
  </div>`;
}

function LastRuns({ job }) {
  const { data } = useLoaded(() => get(at`/api/jobs/${job.job_id}`), `${job.job_id} ${job.runs}`);
  const runs = data?.latest_runs ?? [];
  if (!runs.length) return html`<p class="muted">It has not run yet.</p>`;
  return html`<details><summary><span class="muted">Last runs</span> <span class="dots" aria-hidden="true">${runs.map((one) => html`<span key=${one.run} class=${`dot ${DOTS[one.state] ?? ""}`}></span>`)}</span>
      <span class="sr">${runs.map((one) => one.state).join(", ")}</span></summary>
    ${runs.slice(0, 5).map((one) => html`<div key=${one.run} class="run"><p class="muted">${visible(one.state)} · <${Moment} at=${one.started} />${one.session_id ? html` · <a href=${`/chat/${one.session_id}`} onClick=${onLink}>conversation</a>` : ""}${one.error ? ` · ${visible(one.error)}` : ""}</p>
      ${one.output && html`<${Output} text=${one.output} />`}</div>`)}</details>`;
}

export function ProcessesScreen() {
  const [failure, setFailure] = useState("");
  const { data, problem, reload } = useLoaded(() => get("/api/processes"), "");
  const now = useNow(3000);
  useEffect(() => { if (!document.hidden) reload(); }, [now]);
  const end = async (one) => {
    setFailure("");
    try {
      await post(at`/api/processes/${one.id}/kill`);
    } catch (error) {
      setFailure(error.message);
    }
    reload();
  };
  return html`<div class="screen"><h1>Processes</h1>
    ${(problem || failure) && html`<p class="problem" role="alert">${failure || problem}</p>`}
    ${data && !data.processes.length && html`<p class="empty">No background processes. When the agent starts a server or a long build, it appears here with its output.</p>`}
    <ul class="plain">${(data?.processes ?? []).map((one) => html`<li key=${one.id}><${Process} process=${one} now=${now} onEnd=${() => end(one)} /></li>`)}</ul>
  </div>`;
}

function Process({ process, now, onEnd }) {
  const [isOpen, setOpen] = useState(false);
  const isRunning = process.status === "running";
  const { data } = useLoaded(() => (isOpen ? get(at`/api/processes/${process.id}`) : Promise.resolve(null)), `${isOpen} ${isRunning && isOpen ? now : ""}`);
  return html`<div class="between"><details class="process" onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary><code>${visible(process.command ?? process.id)}</code> <span class="muted">${visible(process.status ?? "")}${process.exit_code === undefined || process.exit_code === null ? "" : ` · exit code ${process.exit_code}`}</span></summary>
      <p class="muted"><a href=${`/chat/${process.session_id}`} onClick=${onLink}>Its conversation</a></p>
      ${data && html`<${Output} text=${data.output ?? data.log ?? ""} isLive />`}</details>
    ${isRunning && html`<button type="button" class="quiet deny" aria-label=${`End ${visible(process.command ?? process.id)}`} onClick=${onEnd}>End</button>`}</div>`;
}
