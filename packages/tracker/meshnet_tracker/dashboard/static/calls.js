// The call wall: recent chats as they run and end, which arm took each, and why.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { CallDetail } from "./call_detail.js";
import { useCalls } from "./call_feed.js";
import { duration, hopsOfSignature, modelName, number, plural, timeOfDay, UNKNOWN } from "./format.js";
import { Badge, Hint, Panel, RouteChips, Scroller } from "./pieces.js";

const MODES = ["scout", "exploit", "pinned", "greedy-fallback"];
const OUTCOMES = ["running", "completed", "degenerate", "node_fault", "timeout", "overload", "client_gone", "client_error", "shutdown"];
const ROWS_MAX = 200;
const ROWS_OF_A_PHONE_MAX = 50;
const phone = matchMedia("(max-width: 640px)");

export const outcomeOf = (call) => call.outcome ?? call.state;

export function Calls({ selectedId }) {
  const { calls, isLive, isLoaded } = useCalls();
  const [filter, setFilter] = useState({ text: "", mode: "", outcome: "" });
  const [frozen, setFrozen] = useState(null);
  useFocusBack(selectedId);
  const shown = (frozen ?? calls).filter((call) => matches(call, filter));
  const selected = selectedId && calls.find((call) => call.id === selectedId);
  const state = frozen ? "paused" : isLive ? "live" : "reconnecting";
  return html`<h1 class="visually-hidden">Call wall</h1><div class="wall ${selectedId ? "with-detail" : ""}">
    <${Panel} id="call-wall" title="Call wall" aside=${html`<span class="live" data-state=${state} role="status">${state}</span>`}>
      <${Filter} filter=${filter} setFilter=${setFilter} isPaused=${frozen != null} togglePause=${() => setFrozen(frozen ? null : calls)} count=${shown.length} />
      ${isLoaded && !calls.length && html`<${Hint} title="No call yet">Ask something on the <a href="#chat">chat page</a>, with <code>meshnet chat</code>, or with any OpenAI client at <code>${location.origin}/v1</code>.</${Hint}>`}
      ${calls.length > 0 && !shown.length && html`<${Hint} title="No call matches">Loosen the filter above.</${Hint}>`}
      ${shown.length > 0 && html`<${CallTable} calls=${shown.slice(0, phone.matches ? ROWS_OF_A_PHONE_MAX : ROWS_MAX)} selectedId=${selectedId} />`}
    </${Panel}>
    ${selectedId && html`<${CallDetail} key=${selectedId} id=${selectedId} live=${selected} />`}</div>`;
}

// Whoever closes a call's detail is where they were: at its row.
function useFocusBack(selectedId) {
  const before = useRef("");
  useEffect(() => {
    if (!selectedId && before.current) document.querySelector(`[data-call="${CSS.escape(before.current)}"] a`)?.focus();
    before.current = selectedId;
  }, [selectedId]);
}

function matches(call, { text, mode, outcome }) {
  const haystack = `${call.model} ${call.signature} ${call.id} ${call.error?.code}`.toLowerCase();
  return (!mode || call.mode === mode) && (!outcome || outcomeOf(call) === outcome) && haystack.includes(text.trim().toLowerCase());
}

function Filter({ filter, setFilter, isPaused, togglePause, count }) {
  const set = (name) => (event) => setFilter({ ...filter, [name]: event.target.value });
  const select = (name, options) => html`<label>${name} <select value=${filter[name]} onChange=${set(name)}><option value="">any</option>${options.map((option) => html`<option value=${option}>${option.replace("_", " ")}</option>`)}</select></label>`;
  return html`<form class="filter" role="search" aria-label="Filter calls" onSubmit=${(event) => event.preventDefault()}>
    <label class="grow">find <input type="search" placeholder="model, node, error or request id" value=${filter.text} onInput=${set("text")} /></label>
    ${select("mode", MODES)} ${select("outcome", OUTCOMES)}
    <button type="button" aria-pressed=${isPaused} onClick=${togglePause}>${isPaused ? "Resume" : "Pause"}</button>
    <span class="muted">${plural(count, "call")}</span></form>`;
}

const CallTable = ({ calls, selectedId }) => html`<${Scroller} label="Calls"><table class="calls stacked">
  <thead><tr><th scope="col">time</th><th scope="col" class="of-model">model</th><th scope="col">route</th><th scope="col">mode</th><th scope="col">outcome</th>
    <th scope="col" class="num">tokens</th><th scope="col" class="num">tok/s</th><th scope="col" class="num of-time">first token</th><th scope="col" class="num of-time">took</th><th scope="col" class="num">attempts</th></tr></thead>
  <tbody>${calls.map((call) => html`<${CallRow} key=${call.id} call=${call} isSelected=${call.id === selectedId} />`)}</tbody></table></${Scroller}>`;

// A row is drawn again only when its call has changed: many arrive while most stand still.
const CallRow = ({ call, isSelected }) => useMemo(() => drawRow(call, isSelected), [call, isSelected]);

function drawRow(call, isSelected) {
  const open = () => (location.hash = `#calls/${call.id}`);
  return html`<tr class=${isSelected ? "selected" : ""} onClick=${open} data-call=${call.id}>
    <th scope="row"><a href="#calls/${call.id}" aria-label="Call at ${timeOfDay(call.at)}, details" aria-current=${isSelected ? "true" : undefined}>${timeOfDay(call.at)}</a></th>
    <td class="of-model">${modelName(call.model)}</td>
    <td class="full">${call.signature ? html`<${RouteChips} hops=${hopsOfSignature(call.signature)} />` : html`<span class="muted">no route</span>`}</td>
    <td class="mode">${call.mode ? html`<${Badge} kind=${call.mode} />` : UNKNOWN} <small>${call.reason !== call.mode ? call.reason : ""}</small></td>
    <td class="state"><${Badge} kind=${outcomeOf(call).replace("_", " ")} /> <small>${errorName(call.error)}</small></td>
    <td class="num" data-label="tokens">${call.completion_tokens ?? UNKNOWN}${call.choice_count > 1 && html`<small> in ${call.choice_count}</small>`}</td>
    <td class="num strong" data-label="tok/s">${number(call.tps)}</td>
    <td class="num of-time" data-label="first token">${duration(call.ttft_s)}</td><td class="num of-time" data-label="took">${duration(call.seconds)}</td>
    <td class="num ${call.attempts.length > 1 ? "warn" : ""}" data-label="attempts">${call.attempts.length}</td></tr>`;
}

// What went wrong, in a word: OpenAI's name for it, else the field at fault.
const errorName = (error) => (error ? error.code ?? error.param ?? `status ${error.status}` : "");
