// Where the time went: queue, compute and link of each hop, as bars.
import { html } from "./vendor/htm-preact.js";
import { duration, instanceOf } from "./format.js";

const PARTS = ["queue", "compute", "link"];
const ELSEWHERE_SHARE_MIN = 0.02;

// One stacked bar for a whole route; milliseconds of a mean step.
export function StepBar({ hops }) {
  const parts = hops.flatMap((hop) => PARTS.map((part) => ({ hop, part, ms: hop[`${part}_ms`] })));
  const total = parts.reduce((sum, { ms }) => sum + ms, 0);
  if (!total) return html`<span class="muted">not reported</span>`;
  const words = parts.filter(({ ms }) => ms >= 0.01).map(({ hop, part, ms }) => `${instanceOf(hop.node_id)} ${part} ${ms.toFixed(1)} ms`).join(", ");
  return html`<span class="step" title=${words}><span class="step-total">${total.toFixed(1)} ms</span>
    <span class="stack" role="img" aria-label=${words}>${parts.map(
      ({ part, ms }, index) => html`<span data-part=${part} class=${index && index % 3 === 0 ? "next-hop" : ""} style=${{ flexGrow: ms }}></span>`,
    )}</span></span>`;
}

export const TimingLegend = () => html`<ul class="legend">${PARTS.map((part) => html`<li><span class="swatch" data-part=${part} aria-hidden="true"></span>${part}</li>`)}</ul>`;

// A call's hops one below the other: each hop's sums over all steps, set against the whole call.
export function Waterfall({ call }) {
  const hops = call.hops.filter((hop) => hop.timing);
  if (!hops.length) return html`<p class="muted">No hop reported its timing${call.state === "running" ? " yet" : ""}.</p>`;
  const sums = hops.map((hop) => PARTS.map((part) => hop.timing[`${part}_s`]));
  const inHops = sums.flat().reduce((sum, value) => sum + value, 0);
  const whole = Math.max(call.seconds ?? 0, inHops);
  let offset = 0;
  return html`<div class="waterfall">
    <table><caption class="visually-hidden">Time of each hop, summed over all steps</caption>
      <thead><tr><th scope="col">hop</th>${PARTS.map((part) => html`<th scope="col" class="num">${part}</th>`)}<th scope="col" class="wide">share of ${duration(whole)}</th></tr></thead>
      <tbody>${hops.map((hop, index) => {
        const before = offset;
        offset += sums[index].reduce((sum, value) => sum + value, 0);
        return html`<tr><th scope="row">${instanceOf(hop.node_id)} <small>${hop.start_layer}-${hop.end_layer}</small></th>
          ${sums[index].map((value) => html`<td class="num">${duration(value)}</td>`)}
          <td class="wide"><span class="lane" aria-hidden="true"><span style=${{ width: `${(100 * before) / whole}%` }}></span>
            ${sums[index].map((value, part) => html`<span data-part=${PARTS[part]} style=${{ width: `${(100 * value) / whole}%` }}></span>`)}</span></td></tr>`;
      })}</tbody></table><${TimingLegend} />
    <p class="footnote">${whole - inHops > ELSEWHERE_SHARE_MIN * whole && html`<span>Elsewhere: ${duration(whole - inHops)} (waiting for a route, the way to client and head${call.attempts.length > 1 && ", earlier attempts"}).</span>`}
      ${call.attempts.length > 1 && html`<span>The hops are those of the last attempt.</span>`}</p></div>`;
}
