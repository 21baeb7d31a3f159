// Jobs with their next and last runs, and background processes with their output.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { at, get, post, request } from "./api.js";
import { me } from "./questions.js";
import { announce, onLink, useLoaded, useNow, useStore } from "./state.js";
import { Dialog, Moment, Output, visible } from "./text.js";

const DOTS = { ok: "good", failed: "bad", timed_out: "bad", lost: "bad" };

export function JobsScreen() {
  const { data, problem, reload } = useLoaded(() => get("/api/jobs"), "");
  const { scopes } = useStore(me);
  const [failure, setFailure] = useState("");
  const [edited, setEdited] = useState("");
  const [gone, setGone] = useState(null);
  const isAdmin = scopes.includes("admin");
  const attempt = async (work) => {
    setFailure("");
    try {
      await work();
    } catch (error) {
      setFailure(error.message);
    }
    reload();
  };
  const act = (job, what) => attempt(() => post(at`/api/jobs/${job.job_id}/${what}`));
  const saved = () => { setEdited(""); reload(); };
  return html`<div class="screen"><div class="between"><h1>Jobs</h1>${isAdmin && edited !== "new" && html`<button type="button" onClick=${() => setEdited("new")}>New job</button>`}</div>
    ${edited === "new" && html`<${JobForm} onSaved=${saved} onCancel=${() => setEdited("")} />`}
    ${(problem || failure) && html`<p class="problem" role="alert">${failure || problem}</p>`}
    ${data && !data.has_scheduler && data.jobs.length > 0 && html`<p class="problem">No scheduler is running, so no job starts by itself. Run <code>toolcrib cron serve</code>.</p>`}
    ${data && !data.jobs.length && html`<p class="empty">No jobs yet. Ask the agent for something “every morning at nine”${isAdmin ? ", or make a new job here" : ""}.</p>`}
    <ul class="rows">${(data?.jobs ?? []).map((job) => html`<li key=${job.job_id} class="tall"><div>
        <p class="title">${visible(job.name)} ${job.state !== "active" && html`<span class="badge">${visible(job.state)}</span>`}</p>
        <p>${visible(job.meaning || job.schedule)}</p>
        <p class="muted">${job.next_runs.length ? html`Next: <${Moment} at=${job.next_runs[0]} />${job.next_runs[1] ? html`, then <${Moment} at=${job.next_runs[1]} />` : ""}` : "No next run"}</p>
        <${LastRuns} job=${job} />
        ${edited === job.job_id && html`<${JobForm} job=${job} onSaved=${saved} onCancel=${() => setEdited("")} />`}</div>
      <div class="tools"><button type="button" class="quiet" aria-label=${`Run now: ${visible(job.name)}`} onClick=${() => act(job, "run")}>Run now</button>
        <button type="button" class="quiet" aria-label=${`${job.state === "paused" ? "Resume" : "Pause"} ${visible(job.name)}`} onClick=${() => act(job, job.state === "paused" ? "resume" : "pause")}>${job.state === "paused" ? "Resume" : "Pause"}</button>
        ${isAdmin && html`<button type="button" class="quiet" aria-label=${`Edit ${visible(job.name)}`} onClick=${() => setEdited(job.job_id)}>Edit</button>`}
        <button type="button" class="quiet deny" aria-label=${`Delete ${visible(job.name)}`} onClick=${() => setGone(job)}>Delete</button></div></li>`)}</ul>
    ${gone && html`<${Dialog} label="Delete a job" onClose=${() => setGone(null)}><h2>Delete this job?</h2><p>“${visible(gone.name)}” and the record of its runs will be gone. This cannot be undone.</p>
      <div class="choices"><button type="button" onClick=${() => setGone(null)}>Keep it</button>
        <button type="button" class="deny" onClick=${() => { setGone(null); attempt(() => request("DELETE", at`/api/jobs/${gone.job_id}`)); }}>Delete it</button></div></${Dialog}>`}
  </div>`;
}

const FIELDS = [
  ["name", "Name", "Optional. Without it, the task gives the name."],
  ["schedule", "Schedule", "For example: every 2h, or 0 9 * * 1-5"],
  ["prompt", "Task", "What the agent does each time. It starts without any conversation."],
];

function JobForm({ job, onSaved, onCancel }) {
  const [values, setValues] = useState(Object.fromEntries(FIELDS.map(([name]) => [name, job?.[name] ?? ""])));
  const [problem, setProblem] = useState("");
  const save = async (event) => {
    event.preventDefault();
    setProblem("");
    // What is unchanged is not sent: a schedule that is set again starts anew.
    const given = Object.fromEntries(Object.entries(values).filter(([name, value]) => value.trim() && value !== job?.[name]));
    try {
      const made = await (job ? request("PATCH", at`/api/jobs/${job.job_id}`, given) : post("/api/jobs", given));
      announce(`${made.name} is saved.`);
      onSaved();
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<form class="try" aria-label=${job ? `Edit ${visible(job.name)}` : "New job"} onSubmit=${save}>
    ${FIELDS.map(([name, label, hint]) => {
      const shared = { id: `job-${name}`, value: values[name], required: name !== "name", "aria-describedby": `job-${name}-hint`, onInput: (event) => setValues((old) => ({ ...old, [name]: event.target.value })) };
      return html`<div key=${name} class="argument"><label for=${`job-${name}`}>${label}</label>${name === "prompt" ? html`<textarea rows="3" ...${shared}></textarea>` : html`<input ...${shared} />`}
        <p class="muted" id=${`job-${name}-hint`}>${hint}</p></div>`;
    })}
    ${problem && html`<p class="problem" role="alert">${visible(problem)}</p>`}
    <div class="choices"><button class="main">Save</button><button type="button" onClick=${onCancel}>Cancel</button></div></form>`;
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
