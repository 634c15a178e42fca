// What the tracker says of the page itself: whether somebody had to log in, and whether texts of calls are shown.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { getJson, goToLogin } from "./api.js";

const UNKNOWN_YET = { has_login: false, shows_texts: false };
let asked = null;

export function usePageFacts() {
  const [facts, setFacts] = useState(UNKNOWN_YET);
  useEffect(() => {
    asked ??= getJson("/v1/dashboard");
    asked.then(setFacts, () => (asked = null));
  }, []);
  return facts;
}

// Whoever looks must know that they are looking at other people's words, on every page.
export function PageFacts() {
  const facts = usePageFacts();
  return html`${facts.shows_texts && html`<strong class="badge texts-shown">texts are shown</strong>`}
    ${facts.has_login && html`<button type="button" onClick=${logOut}>Log out</button>`}`;
}

async function logOut() {
  await fetch("/logout", { method: "POST" });
  goToLogin();
}
