// One conversation: its stored messages, and the events of the run that works on it, as one list of items.

import { at, follow, get, post } from "./api.js";
import { announce, createStore } from "./state.js";
import { partsOf } from "./text.js";

const EMPTY = {
  id: "", session: null, items: [], plan: null, run: null, isWorking: false, isLoading: false, problem: "", sending: null,
};

export const conversation = createStore({ ...EMPTY });
export const waiting = createStore({ approvals: [], questions: [], isKnown: false });

let stopFollowing = () => {};
let turn = 0;

// Open a session, or an empty conversation. What the run that still works has added comes from its events alone: a
// message is shown by one of the two, never by both.
export async function open(id) {
  const mine = ++turn;
  stopFollowing();
  stopFollowing = () => {};
  conversation.set({ ...EMPTY, id, isLoading: Boolean(id) });
  if (!id) return;
  try {
    const [session, { runs }] = await Promise.all([get(at`/api/sessions/${id}`), get(`/api/runs?session=${encodeURIComponent(id)}&limit=1`)]);
    const working = runs.find((one) => one.state === "working");
    const { messages } = await get(at`/api/sessions/${id}/messages`);
    if (mine !== turn) return;
    const before = working ? messages.filter((one) => one.created_at < working.created_at) : messages;
    const draft = { items: [], plan: null };
    for (const message of before) addMessage(draft, `m${message.id}`, message);
    closeCalls(draft);
    const last = runs[0];
    if (last && !working && last.problem) draft.items.push({ kind: "end", key: `end-${last.id}`, outcome: last.state, problem: last.problem });
    conversation.set({ session, ...draft, run: last ?? null, isLoading: false, problem: "" });
    if (working) watch(working);
  } catch (error) {
    if (mine === turn) conversation.set({ isLoading: false, problem: error.message });
  }
}

// Look again when the page wakes up or another window may have gone on with the session.
export async function refresh() {
  const { id, isWorking, isLoading, sending } = conversation.get();
  refreshWaiting();
  if (!id || isWorking || isLoading || sending) return;
  const mine = turn;
  try {
    const known = conversation.get().session;
    const session = await get(at`/api/sessions/${id}`);
    if (mine === turn && known && session.updated_at !== known.updated_at && !conversation.get().isWorking) await open(id);
  } catch {
    // The next look will tell.
  }
}

export async function refreshWaiting() {
  try {
    const [{ approvals }, { questions }] = await Promise.all([get("/api/approvals"), get("/api/questions")]);
    waiting.set({ approvals, questions, isKnown: true });
  } catch {
    // The bar says that the server is away.
  }
}

// The form in which the agent knows what a person attached from what they typed. The text cannot close it.
function attached(name, text) {
  const shown = name.replaceAll('"', "'").split(/\s+/).join(" ");
  return `\n\n<attached name="${shown}">\n${text.trimEnd().replace(/<(?=\/?attached\b)/gi, "&lt;")}\n</attached>`;
}

let key = "";
let keyOf = "";

// Ask, or say something to the run that works. Raises what went wrong; the caller keeps the text.
export async function say(typed, files = []) {
  const now = conversation.get();
  if (now.isWorking && now.run) {
    await post(at`/api/runs/${now.run.id}/steer`, { text: typed });
    return now.id;
  }
  // The same text again after a lost connection is the same request: the server starts one run for it.
  const images = files.filter((one) => one.image).map((one) => one.image);
  const text = typed + files.filter((one) => !one.image).map((one) => attached(one.name, one.text)).join("");
  const what = JSON.stringify([now.id, text, images]);
  if (keyOf !== what) [key, keyOf] = [crypto.randomUUID(), what];
  conversation.set({ sending: { text: typed }, problem: "" });
  try {
    const body = { text, images, ...(now.id ? { session_id: now.id } : {}) };
    const run = await post("/api/runs", body, { "Idempotency-Key": key });
    keyOf = "";
    if (conversation.get().id !== now.id) return run.session_id;
    turn++;
    conversation.set({ id: run.session_id });
    watch(run);
    if (!now.session) loadSession();
    return run.session_id;
  } catch (error) {
    conversation.set({ sending: null });
    throw error;
  }
}

export async function stop() {
  const { run, isWorking } = conversation.get();
  if (run && isWorking) await post(at`/api/runs/${run.id}/stop`);
}

async function loadSession() {
  const { id } = conversation.get();
  const session = await get(at`/api/sessions/${id}`).catch(() => null);
  if (session && conversation.get().id === id) conversation.set({ session });
}

function watch(run) {
  conversation.set({ run, isWorking: true });
  const started = conversation.get().items.length;
  const draft = { items: conversation.get().items.slice(0, started), plan: conversation.get().plan, open: null };
  stopFollowing = follow(
    run.id, 0,
    (number, event) => {
      apply(draft, `${run.id}-${number}`, event);
      conversation.set({ items: [...draft.items], plan: draft.plan, ...(draft.isHeard ? { sending: null } : {}) });
    },
    () => {
      closeCalls(draft);
      conversation.set({ items: [...draft.items], isWorking: false, sending: null });
      refreshWaiting();
      loadSession();
    },
  );
}

function change(draft, key, values) {
  const index = draft.items.findIndex((one) => one.key === key);
  if (index >= 0) draft.items[index] = { ...draft.items[index], ...values };
  return index >= 0;
}

// Add one event of a run. Items are replaced, never changed, so that what stayed the same is not drawn again.
export function apply(draft, key, event, { isQuiet = false } = {}) {
  HANDLERS[event.event]?.(draft, key, event);
  if (isQuiet) return;
  const said = ANNOUNCED[event.event]?.(event);
  if (said) announce(said);
  if (event.event.startsWith("question_")) refreshWaiting();
}

const ANNOUNCED = {
  question_asked: ({ kind, command, text }) => (kind === "approval" ? `Approval needed: ${command || text}` : `Question: ${text}`),
  run_ended: ({ result }) => result.problem || "The answer is complete.",
};

const HANDLERS = {
  text_streamed: (draft, key, { text }) => grow(draft, key, "text", text),
  reasoning_streamed: (draft, key, { text }) => grow(draft, key, "reasoning", text),
  notified(draft, key, { kind, message }) {
    if (kind === "restart") {
      draft.items = draft.items.filter((one) => one.key !== draft.open);
      draft.open = null;
    }
    draft.items.push({ kind: "notice", key, text: message });
  },
  message_added(draft, key, { message }) {
    if (message.role === "user") draft.isHeard = true;
    addMessage(draft, key, message);
  },
  call_started(draft, key, { call, title, emoji, summary }) {
    draft.open = null;
    const values = { name: title || call.name, tool: call.name, emoji, summary, arguments: call.arguments, status: "running", startedAt: Date.now() };
    if (!change(draft, `call-${call.id}`, values)) draft.items.push({ kind: "call", key: `call-${call.id}`, ...values });
  },
  call_progressed: (draft, _, { call_id, message }) => change(draft, `call-${call_id}`, { progress: message }),
  call_output: (draft, _, { call_id, text, lines }) => change(draft, `call-${call_id}`, { output: text, lines }),
  call_finished(draft, _, event) {
    const { call_id, status, text, error_message, duration_ms, edited } = event;
    change(draft, `call-${call_id}`, { status, result: text, error: error_message, duration: duration_ms, edited, exit: exitOf(text) });
    findPlan(draft, event.name, text);
  },
  question_asked(draft, _, { event, ...asked }) {
    draft.items.push({ ...asked, kind: asked.kind, key: `ask-${asked.id}`, isQuestion: true });
  },
  question_answered(draft, _, { id, answer, is_allowed }) {
    change(draft, `ask-${id}`, { answer, isAllowed: is_allowed, isAnswered: true });
  },
  compressed: (draft, key, { messages }) => draft.items.push({ kind: "notice", key, text: `A summary replaced the ${messages} oldest messages.` }),
  steering_dropped: (draft, key, { text }) => draft.items.push({ kind: "notice", key, text: `This came too late for the run; send it again: ${text}` }),
  child_progressed(draft, key, { child_id, goal, state, what }) {
    const values = { goal, state, what };
    if (!change(draft, `child-${child_id}`, values)) draft.items.push({ kind: "child", key: `child-${child_id}`, ...values });
  },
  run_ended(draft, key, { result }) {
    if (result.problem) draft.items.push({ kind: "end", key, outcome: result.outcome, problem: result.problem });
  },
};

function grow(draft, key, field, text) {
  const index = draft.open ? draft.items.findIndex((one) => one.key === draft.open) : -1;
  if (index < 0) {
    draft.open = key;
    draft.items.push({ kind: "answer", key, text: "", reasoning: "", isOpen: true, [field]: text });
  } else {
    const item = draft.items[index];
    draft.items[index] = { ...item, [field]: item[field] + text };
  }
}

export function addMessage(draft, key, message) {
  const { text, images } = partsOf(message.content);
  if (message.role === "user") {
    draft.items.push({ kind: "user", key, text, images, at: message.created_at });
  } else if (message.role === "assistant") {
    const values = { text, reasoning: message.reasoning ?? "", images, isOpen: false };
    if (!draft.open || !change(draft, draft.open, values)) {
      if (text || values.reasoning || images.length) draft.items.push({ kind: "answer", key, ...values });
    }
    draft.open = null;
    for (const call of message.tool_calls ?? []) addCall(draft, call);
  } else if (message.role === "tool") {
    change(draft, `call-${message.call_id}`, { result: text, images, status: message.status ?? "ok", exit: exitOf(text) });
    findPlan(draft, message.name, text);
  }
}

function addCall(draft, call) {
  const exists = draft.items.some((one) => one.key === `call-${call.id}`);
  if (exists) return;
  draft.items.push({
    kind: "call", key: `call-${call.id}`, name: call.name, tool: call.name, emoji: "", summary: summaryOf(call.arguments), arguments: call.arguments,
    status: "planned",
  });
}

// Calls without a result: the run ended before they did.
function closeCalls(draft) {
  draft.items = draft.items.map((one) =>
    one.kind === "call" && ["running", "planned"].includes(one.status) ? { ...one, status: "cancelled" } : one.isOpen ? { ...one, isOpen: false } : one);
  draft.open = null;
}

const MAIN_ARGUMENTS = ["command", "path", "file_path", "query", "url", "pattern", "question", "name", "code", "text"];

export function summaryOf(given) {
  try {
    const values = JSON.parse(given);
    const name = MAIN_ARGUMENTS.find((one) => typeof values[one] === "string") ?? Object.keys(values).find((one) => typeof values[one] === "string");
    return name ? values[name].split("\n")[0].slice(0, 200) : "";
  } catch {
    return "";
  }
}

// The exit code of a command that did not end with 0.
function exitOf(text) {
  const found = /^\{.*"exit_code": ?(\d+)/s.exec(text.length < 200_000 ? text : "");
  return found ? Number(found[1]) : 0;
}

function findPlan(draft, tool, text) {
  if (tool !== "todo") return;
  try {
    const { todos } = JSON.parse(text);
    if (Array.isArray(todos)) draft.plan = todos;
  } catch {
    // A plan that cannot be read stays as it was.
  }
}
