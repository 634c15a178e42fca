// One call: what it took, why this route, what failed before, and where the time went.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { getJson } from "./api.js";
import { CallTexts } from "./call_texts.js";
import { duration, hopsOfSignature, instanceOf, number, plural, reasonText, timeOfDay, UNKNOWN } from "./format.js";
import { Badge, Failure, Meter, RouteChips } from "./pieces.js";
import { Waterfall } from "./timing.js";

const close = () => (location.hash = "#calls");

// `live` is the call as the wall knows it; one that has scrolled off is asked for.
export function CallDetail({ id, live }) {
  const [fetched, setFetched] = useState({ call: null, error: null });
  const title = useRef(null);
  useEffect(() => {
    title.current?.focus();
    getJson(`/v1/calls/${encodeURIComponent(id)}`).then(
      (call) => setFetched({ call, error: null }),
      (error) => setFetched({ call: null, error: error.message }),
    );
  }, [id]);
  const call = live ?? fetched.call;
  return html`<aside class="panel detail" aria-labelledby="detail-title" onKeyDown=${(event) => event.key === "Escape" && close()}>
    <header><h2 id="detail-title" tabindex="-1" ref=${title}>Call ${call ? timeOfDay(call.at) : ""}</h2><a class="button" href="#calls">Close</a></header>
    ${call ? html`<${Trouble} error=${call.error} /><${Facts} call=${call} /><${Why} call=${call} /><${Attempts} call=${call} /><h3>Where the time went</h3><${Waterfall} call=${call} /><${CallTexts} call=${call} />` : html`<${Failure} message=${fetched.error} />`}</aside>`;
}

const Trouble = ({ error }) => error && html`<p class="trouble"><strong>${error.status}${error.code && ` ${error.code}`}</strong>${error.param && html` at <code>${error.param}</code>`}
  <br />${error.message ?? "What the client was told may quote what it sent, and is not kept."}</p>`;

const Facts = ({ call }) => html`<dl class="facts">
  ${Object.entries({
    request: html`<code>${call.id}</code>`,
    model: call.model ?? UNKNOWN,
    outcome: html`<${Badge} kind=${(call.outcome ?? call.state).replace("_", " ")} />`,
    tokens: `${call.prompt_tokens ?? UNKNOWN} prompt, ${call.completion_tokens ?? UNKNOWN} completion`,
    speed: `${number(call.tps)} tokens/s`,
    "first token": duration(call.ttft_s),
    took: duration(call.seconds),
    ended: call.finish_reason ?? UNKNOWN,
    ...(call.choice_count > 1 ? { answers: `${call.choice_count}, one after the other` } : {}),
    ...(call.seed == null ? {} : { seed: html`<code>${call.seed}</code>` }),
    measured: whetherMeasured(call),
  }).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

function whetherMeasured(call) {
  if (call.is_sampled) return "yes: a sample of its route";
  if (call.state === "running") return "not yet";
  if (call.outcome !== "completed") return "no: it did not complete";
  if (call.choice_count > 1) return "no: it is several answers";
  if (call.attempts.some((attempt) => attempt.resumed_tokens > 0)) return "no: several routes made it";
  return "no: too short, or its reader was slow";
}

function Why({ call }) {
  if (!call.mode) return html`<h3>Why this route</h3><p class="muted">It ended before a route was chosen.</p>`;
  return html`<h3>Why this route</h3><p><${Badge} kind=${call.mode} /> ${reasonText(call.reason)}</p>
    ${call.candidates.length > 0 && html`<div class="scroller" role="region" aria-label="Candidates at that moment" tabindex="0"><table>
      <thead><tr><th scope="col">candidate</th><th scope="col" class="num">tok/s then</th><th scope="col">its chance then</th></tr></thead>
      <tbody>${call.candidates.map((arm) => html`<tr class=${arm.signature === call.signature ? "selected" : ""}>
        <th scope="row"><${RouteChips} hops=${hopsOfSignature(arm.signature)} />${arm.signature === call.signature && html` <small class="taken">taken</small>`}</th>
        <td class="num">${number(arm.tps)}</td><td><${Meter} share=${arm.share} /></td></tr>`)}</tbody></table></div>`}`;
}

const Attempts = ({ call }) => call.attempts.length > 1 && html`<h3>Attempts</h3><ol class="attempts">${call.attempts.map((attempt) => html`<li>
  <p><${RouteChips} hops=${hopsOfSignature(attempt.signature)} /> <${Badge} kind=${attempt.mode} />${attempt.outcome && html` <${Badge} kind=${attempt.outcome.replace("_", " ")} />`}</p>
  <p class="muted">${reasonText(attempt.reason)}${attempt.resumed_tokens > 0 && `; took over after ${plural(attempt.resumed_tokens, "token")}`}${attempt.drawn_tokens != null && `; drew ${plural(attempt.drawn_tokens, "token")}`}${attempt.seconds != null && ` in ${duration(attempt.seconds)}`}</p>
  ${attempt.error && html`<p class="bad">${attempt.error}</p>`}
  ${attempt.suspects.length > 0 && html`<p class="warn">suspected: ${attempt.suspects.map(instanceOf).join(", ")}</p>`}</li>`)}</ol>`;
