// Light or dark: the system's wish until somebody presses the button, then theirs.
import { html, useState, useEffect } from "./vendor/htm-preact.js";

const KEY = "meshnet-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

function toggle() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem(KEY, next);
  listeners.forEach((listener) => listener());
}

// Re-renders its caller when the theme changes; charts draw on canvas and must be told.
export function useIsDark() {
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    const update = () => setDark(isDark());
    listeners.add(update);
    system.addEventListener("change", update);
    return () => {
      listeners.delete(update);
      system.removeEventListener("change", update);
    };
  }, []);
  return dark;
}

export function ThemeButton() {
  const dark = useIsDark();
  return html`<button class="quiet" onClick=${toggle} aria-label="Switch to ${dark ? "light" : "dark"} colours">
    <span aria-hidden="true">${dark ? "☀" : "☾"}</span>
  </button>`;
}
