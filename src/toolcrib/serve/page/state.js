// Small stores, the address, and time.

import { useEffect, useState } from "./vendor/preact-htm.js";

export function createStore(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(change) {
      value = { ...value, ...change };
      listeners.forEach((one) => one(value));
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

export function useStore(store) {
  const [, show] = useState(0);
  useEffect(() => {
    let frame = 0;
    // Many changes in one frame are one rendering. A hidden page has no frames, but its badge in the title counts.
    const soon = () => {
      if (frame) return;
      const draw = () => { frame = 0; show((n) => n + 1); };
      frame = document.hidden ? setTimeout(draw, 200) : requestAnimationFrame(draw);
    };
    soon();
    return store.subscribe(soon);
  }, [store]);
  return store.get();
}

export const address = createStore({ path: location.pathname });
addEventListener("popstate", () => address.set({ path: location.pathname }));

// `words` is what the screen searches for at first.
export function go(path, { isReplacing = false, words = "" } = {}) {
  if (path !== location.pathname) history[isReplacing ? "replaceState" : "pushState"](null, "", path);
  address.set({ path, words });
}

// For links: our own screens change without loading the page again.
export function onLink(event) {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(event.currentTarget.getAttribute("href"));
}

export function useNow(everyMs = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

// Loads data, again when `key` changes or `reload` is called.
export function useLoaded(load, key) {
  const [state, setState] = useState({ data: null, problem: "" });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (data) => isCurrent && setState({ data, problem: "" }),
      (error) => isCurrent && setState((old) => ({ ...old, problem: error.message })),
    );
    return () => { isCurrent = false; };
  }, [key, turn]);
  return { ...state, reload: () => setTurn((n) => n + 1) };
}

const said = createStore({ text: "" });
export const announcement = said;
export const announce = (text) => said.set({ text });
