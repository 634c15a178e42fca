// The call wall: recent chats as they run and end, which arm took each, and why.
import { html, useState } from "./vendor/htm-preact.js";
import { CallDetail } from "./call_detail.js";
import { useCalls } from "./call_feed.js";
import { duration, hopsOfSignature, modelName, number, timeOfDay, UNKNOWN } from "./format.js";
import { Badge, Hint, Panel, RouteChips, Scroller } from "./pieces.js";

const MODES = ["scout", "exploit", "pinned", "greedy-fallback"];
const OUTCOMES = ["running", "completed", "degenerate", "node_fault", "timeout", "overload", "client_gone", "client_error", "shutdown"];
const ROWS_MAX = 200;

export const outcomeOf = (call) => call.outcome ?? call.state;

export function Calls({ selectedId }) {
  const { calls, isLive, isLoaded } = useCalls();
  const [filter, setFilter] = useState({ text: "", mode: "", outcome: "" });
  const [frozen, setFrozen] = useState(null);
  const shown = (frozen ?? calls).filter((call) => matches(call, filter));
  const selected = selectedId && calls.find((call) => call.id === selectedId);
  const state = frozen ? "paused" : isLive ? "live" : "reconnecting";
  return html`<h1 class="visually-hidden">Call wall</h1><div class="wall ${selectedId ? "with-detail" : ""}">
    <${Panel} id="calls" title="Call wall" aside=${html`<span class="live" data-state=${state} role="status">${state}</span>`}>
      <${Filter} filter=${filter} setFilter=${setFilter} isPaused=${frozen != null} togglePause=${() => setFrozen(frozen ? null : calls)} count=${shown.length} />
      ${isLoaded && !calls.length && html`<${Hint} title="No call yet">Ask something on the <a href="#chat">chat page</a>, with <code>meshnet chat</code>, or with any OpenAI client at <code>${location.origin}/v1</code>.</${Hint}>`}
      ${calls.length > 0 && !shown.length && html`<${Hint} title="No call matches">Loosen the filter above.</${Hint}>`}
      ${shown.length > 0 && html`<${CallTable} calls=${shown.slice(0, ROWS_MAX)} selectedId=${selectedId} />`}
    </${Panel}>
    ${selectedId && html`<${CallDetail} key=${selectedId} id=${selectedId} live=${selected} />`}</div>`;
}

function matches(call, { text, mode, outcome }) {
  const haystack = `${call.model} ${call.signature} ${call.id}`.toLowerCase();
  return (!mode || call.mode === mode) && (!outcome || outcomeOf(call) === outcome) && haystack.includes(text.trim().toLowerCase());
}

function Filter({ filter, setFilter, isPaused, togglePause, count }) {
  const set = (name) => (event) => setFilter({ ...filter, [name]: event.target.value });
  const select = (name, options) => html`<label>${name} <select value=${filter[name]} onChange=${set(name)}><option value="">any</option>${options.map((option) => html`<option value=${option}>${option.replace("_", " ")}</option>`)}</select></label>`;
  return html`<form class="filter" role="search" aria-label="Filter calls" onSubmit=${(event) => event.preventDefault()}>
    <label class="grow">find <input type="search" placeholder="model, node or request id" value=${filter.text} onInput=${set("text")} /></label>
    ${select("mode", MODES)} ${select("outcome", OUTCOMES)}
    <button type="button" aria-pressed=${isPaused} onClick=${togglePause}>${isPaused ? "Resume" : "Pause"}</button>
    <span class="muted" role="status">${count} call${count === 1 ? "" : "s"}</span></form>`;
}

const CallTable = ({ calls, selectedId }) => html`<${Scroller} label="Calls"><table class="calls">
  <thead><tr><th scope="col">time</th><th scope="col">model</th><th scope="col">route</th><th scope="col">mode</th><th scope="col">outcome</th>
    <th scope="col" class="num">tokens</th><th scope="col" class="num">tok/s</th><th scope="col" class="num">first token</th><th scope="col" class="num">took</th><th scope="col" class="num">attempts</th></tr></thead>
  <tbody>${calls.map((call) => html`<${CallRow} key=${call.id} call=${call} isSelected=${call.id === selectedId} />`)}</tbody></table></${Scroller}>`;

function CallRow({ call, isSelected }) {
  const open = () => (location.hash = `#calls/${call.id}`);
  const hops = call.hops.length ? call.hops : call.signature ? hopsOfSignature(call.signature) : [];
  return html`<tr class=${isSelected ? "selected" : ""} onClick=${open} data-call=${call.id}>
    <th scope="row"><a href="#calls/${call.id}" aria-label="Call at ${timeOfDay(call.at)}, details" aria-current=${isSelected ? "true" : undefined}>${timeOfDay(call.at)}</a></th>
    <td>${modelName(call.model)}</td>
    <td>${hops.length ? html`<${RouteChips} hops=${hops} />` : html`<span class="muted">no route</span>`}</td>
    <td>${call.mode ? html`<${Badge} kind=${call.mode} />` : UNKNOWN} <small class="muted">${call.reason !== call.mode ? call.reason : ""}</small></td>
    <td><${Badge} kind=${outcomeOf(call).replace("_", " ")} /></td>
    <td class="num">${call.completion_tokens ?? UNKNOWN}</td><td class="num strong">${number(call.tps)}</td>
    <td class="num">${duration(call.ttft_s)}</td><td class="num">${duration(call.seconds)}</td>
    <td class="num ${call.attempts.length > 1 ? "warn" : ""}">${call.attempts.length}</td></tr>`;
}
