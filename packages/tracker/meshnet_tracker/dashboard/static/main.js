// The shell: which page the address names, and the bar above it.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { Calls } from "./calls.js";
import { Chat } from "./chat.js";
import { Overview } from "./overview.js";
import { PageFacts } from "./page_facts.js";
import { ThemeButton } from "./theme.js";

// An address names a page, or a panel of the overview such as #routing.
const PAGES = { overview: "Overview", calls: "Call wall", chat: "Chat" };
const LINKS = { overview: "Overview", routing: "Routing", calls: "Call wall", chat: "Chat" };

function parse(hash) {
  const [name, detail = ""] = hash.replace(/^#/, "").split("/", 2);
  return name in PAGES ? { page: name, panel: "", detail } : { page: "overview", panel: name, detail: "" };
}

function useAddress() {
  const [address, setAddress] = useState(parse(location.hash));
  useEffect(() => {
    const update = () => setAddress(parse(location.hash));
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return address;
}

// Panels above the one asked for appear only when data is there, so look again until the page stands still.
function useScrollTo(panel) {
  useEffect(() => {
    if (!panel) return undefined;
    const show = () => document.getElementById(`${panel}-title`)?.scrollIntoView({ block: "start" });
    document.getElementById(`${panel}-title`)?.focus({ preventScroll: true });
    show();
    const timers = [300, 900].map((delay) => setTimeout(show, delay));
    return () => timers.forEach(clearTimeout);
  }, [panel]);
}

// An address would be taken for a page's, so the link moves the focus itself.
function skipToMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function App() {
  const { page, panel, detail } = useAddress();
  const here = panel in LINKS ? panel : page;
  useScrollTo(panel);
  useEffect(() => void (document.title = `${LINKS[here]} · meshnet`), [here]);
  const link = (name) => html`<a href="#${name}" aria-current=${here === name ? "page" : undefined}>${LINKS[name]}</a>`;
  return html`<a class="skip" href="#main" onClick=${skipToMain}>Skip to the content</a>
    <header class="bar"><a class="brand" href="#overview" aria-label="meshnet, overview"><img src="/ui/icon.svg" alt="" width="22" height="22" /><span>meshnet</span></a>
      <nav aria-label="Pages">${Object.keys(LINKS).map(link)}</nav><${PageFacts} /><${ThemeButton} /></header>
    <main id="main" tabindex="-1">${page === "overview" ? html`<${Overview} />` : page === "calls" ? html`<${Calls} selectedId=${detail} />` : html`<${Chat} />`}</main>`;
}

render(html`<${App} />`, document.getElementById("app"));
