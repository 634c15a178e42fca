// How the pages ask the tracker: one fetch that fails in words a person can use, and polling.
import { useState, useEffect } from "./vendor/htm-preact.js";

export async function getJson(path) {
  let response;
  try {
    response = await fetch(path);
  } catch {
    throw new Error("The tracker does not answer. Is it still running? Start it with: meshnet tracker");
  }
  if (response.status === 401) goToLogin();
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(body?.error?.message ?? `The tracker answered ${response.status}.`);
  return body;
}

// The latest answer of `path`, asked again every `periodMs` while the page is visible. After an error
// the last good answer stays, and `error` says what is wrong.
export function usePoll(path, periodMs) {
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    let timer;
    let isOver = false;
    const ask = async () => {
      if (!document.hidden) {
        try {
          const data = await getJson(path);
          if (!isOver) setState({ data, error: null });
        } catch (error) {
          if (!isOver) setState((before) => ({ ...before, error: error.message }));
        }
      }
      if (!isOver) timer = setTimeout(ask, periodMs);
    };
    ask();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [path, periodMs]);
  return state;
}

// A login ends after some hours, and with the tracker's admin key.
export const goToLogin = () => location.assign("/login");
