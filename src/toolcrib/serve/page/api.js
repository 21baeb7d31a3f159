// Requests to the server that the page comes from, and to no other.

import { createStore } from "./state.js";

const KEY = "toolcrib.key";
const QUIET_MS = 45_000; // The server sends something at least every 15 seconds.
const SLOWEST_MS = 10_000;

export const contact = createStore({ isLost: false, at: Date.now() });
export const login = createStore({ key: localStorage.getItem(KEY) ?? "" });

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const noted = (isLost) => contact.set(isLost ? { isLost } : { isLost, at: Date.now() });

async function send(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers, "X-Toolcrib-Key": login.get().key };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, signal, headers: sent, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    noted(true);
    throw new ApiError(0, "The server cannot be reached. Check that it is running; your text is kept.");
  }
  noted(false);
  if (response.status === 401 && path !== "/login") forget();
  return response;
}

export async function request(method, path, body, headers) {
  const response = await send(path, { method, body, headers });
  const data = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, data.error?.message ?? data.error ?? `The server answered ${response.status}.`);
  return data;
}

export const get = (path) => request("GET", path);
export const post = (path, body, headers) => request("POST", path, body ?? {}, headers);
export const at = (strings, ...ids) => strings.reduce((path, part, n) => path + encodeURIComponent(ids[n - 1]) + part);

export async function logIn(code) {
  const { key } = await post("/login", { code });
  localStorage.setItem(KEY, key);
  login.set({ key });
}

export async function logOut() {
  await post("/logout").catch(() => {});
  forget();
}

function forget() {
  localStorage.removeItem(KEY);
  login.set({ key: "" });
}

// Another tab that logs in or out does it for all.
addEventListener("storage", (event) => event.key === KEY && login.set({ key: event.newValue ?? "" }));

// Follow a run's events from number `after` on, through dropped connections and sleep. Each event arrives exactly once,
// because the server continues after the last number that we name. Returns a function that stops.
export function follow(runId, after, onEvent, onEnd) {
  let last = after, isOver = false, pause = 300, controller, wake = () => {};

  async function listen() {
    controller = new AbortController();
    let timer;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => controller.abort(), QUIET_MS);
    };
    alive();
    try {
      const headers = { "Last-Event-ID": String(last), Accept: "text/event-stream" };
      const response = await send(at`/api/runs/${runId}/events`, { headers, signal: controller.signal });
      if (response.status === 204 || response.status === 404 || response.status === 401) return finish();
      if (!response.ok) return;
      pause = 300;
      for await (const [number, event] of eventsOf(response.body, alive)) {
        if (isOver) return;
        if (number <= last) continue;
        last = number;
        onEvent(number, event);
        if (event.event === "run_ended") return finish();
      }
    } catch (error) {
      if (!isOver && !(error instanceof ApiError)) noted(error.name !== "AbortError");
    } finally {
      clearTimeout(timer);
    }
  }

  function finish() {
    if (isOver) return;
    stop();
    onEnd();
  }

  function stop() {
    isOver = true;
    controller?.abort();
    removeEventListener("online", again);
    document.removeEventListener("visibilitychange", again);
    wake();
  }

  const again = () => !document.hidden && wake();
  addEventListener("online", again);
  document.addEventListener("visibilitychange", again);
  (async () => {
    while (!isOver) {
      await listen();
      if (isOver) return;
      await new Promise((resolve) => { wake = resolve; setTimeout(resolve, pause); });
      pause = Math.min(pause * 2, SLOWEST_MS);
    }
  })();
  return stop;
}

async function* eventsOf(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        let number = 0, data = "";
        for (const line of block.split("\n")) {
          if (line.startsWith("id: ")) number = Number(line.slice(4));
          else if (line.startsWith("data: ")) data += line.slice(6);
        }
        if (data) yield [number, JSON.parse(data)];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
