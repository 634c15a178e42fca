// One call: what it took, why this route, what failed before, and where the time went.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { getJson } from "./api.js";
import { CallTexts } from "./call_texts.js";
import { duration, hopsOfSignature, number, timeOfDay, UNKNOWN } from "./format.js";
import { Badge, Failure, Meter, RouteChips } from "./pieces.js";
import { Waterfall } from "./timing.js";

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
  return html`<aside class="panel detail" aria-labelledby="detail-title">
    <header><h2 id="detail-title" tabindex="-1" ref=${title}>Call ${call ? timeOfDay(call.at) : ""}</h2><a class="button" href="#calls">Close</a></header>
    ${call ? html`<${Facts} call=${call} /><${Why} call=${call} /><${Attempts} call=${call} /><h3>Where the time went</h3><${Waterfall} call=${call} /><${CallTexts} call=${call} />` : html`<${Failure} message=${fetched.error} />`}</aside>`;
}

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
    measured: call.is_sampled ? "yes: a sample of its route" : "no",
  }).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

function Why({ call }) {
  if (!call.mode) return html`<h3>Why this route</h3><p class="muted">It was refused before a route was chosen.</p>`;
  return html`<h3>Why this route</h3><p><${Badge} kind=${call.mode} /> ${call.reason}</p>
    ${call.candidates.length > 0 && html`<div class="scroller" role="region" aria-label="Candidates at that moment" tabindex="0"><table>
      <thead><tr><th scope="col">candidate</th><th scope="col" class="num">tok/s then</th><th scope="col">its chance then</th></tr></thead>
      <tbody>${call.candidates.map((arm) => html`<tr class=${arm.signature === call.signature ? "selected" : ""}>
        <th scope="row"><${RouteChips} hops=${hopsOfSignature(arm.signature)} />${arm.signature === call.signature && html` <small class="taken">taken</small>`}</th>
        <td class="num">${number(arm.tps)}</td><td><${Meter} share=${arm.share} /></td></tr>`)}</tbody></table></div>`}`;
}

const Attempts = ({ call }) => call.attempts.length > 1 && html`<h3>Attempts</h3><ol class="attempts">${call.attempts.map((attempt) => html`<li>
  <${RouteChips} hops=${hopsOfSignature(attempt.signature)} /> <${Badge} kind=${attempt.mode} />${attempt.resumed_tokens > 0 && ` took over after ${attempt.resumed_tokens} tokens`}
  ${attempt.error && html`<p class="bad">${attempt.error}${attempt.suspects.length > 0 && `; suspected: ${attempt.suspects.join(", ")}`}</p>`}</li>`)}</ol>`;
