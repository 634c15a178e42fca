// Small things that several pages show: routes as chips, meters, badges, messages, panels.
import { html } from "./vendor/htm-preact.js";
import { instanceOf, percent, UNKNOWN } from "./format.js";

export const Panel = ({ id, title, aside, children }) => html`
  <section class="panel" id=${id} aria-labelledby="${id}-title">
    <header><h2 id="${id}-title" tabindex="-1">${title}</h2>${aside && html`<div class="aside">${aside}</div>`}</header>
    ${children}
  </section>`;

// A wide table scrolls inside its own region, which the keyboard can reach.
export const Scroller = ({ label, children }) => html`<div class="scroller" role="region" aria-label=${label} tabindex="0">${children}</div>`;

export const Hint = ({ title, children }) => html`<div class="hint"><strong>${title}</strong><p>${children}</p></div>`;

export const Failure = ({ message }) => message && html`<p class="failure" role="alert">${message}</p>`;

export const Badge = ({ kind }) => html`<span class="badge" data-kind=${kind}>${kind}</span>`;

// One layer is all there is of a model behind another server.
const layersOf = (hop, hops) => (hops.length === 1 && hop.end_layer === 0 ? "all" : `${hop.start_layer}-${hop.end_layer}`);

// Hops in order, with the layers they run.
export const RouteChips = ({ hops }) => html`<span class="chips">
  ${hops.map((hop, index) => html`${index > 0 && html`<span class="arrow" aria-label="then">→</span>`}<span class="chip" title=${hop.node_id}>${instanceOf(hop.node_id)}<small>${layersOf(hop, hops)}</small></span>`)}
</span>`;

export const Meter = ({ share, kind = "" }) => html`<span class="meter">
  <span class="meter-text">${percent(share)}</span>
  <span class="meter-track" aria-hidden="true"><span class="meter-fill" data-kind=${kind} style=${{ width: `${100 * Math.min(1, share ?? 0)}%` }}></span></span>
</span>`;

// A line of values without axes; the words say what matters to those who do not see it.
export function Sparkline({ values, label }) {
  if (values.length < 2) return html`<span class="muted">${values.length ? "1 sample" : UNKNOWN}</span>`;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const y = (value) => 20 - (18 * (value - low)) / (high - low || 1);
  const points = values.map((value, index) => `${(1 + (98 * index) / (values.length - 1)).toFixed(1)},${y(value).toFixed(1)}`);
  return html`<svg class="sparkline" viewBox="0 0 100 22" preserveAspectRatio="none" role="img" aria-label=${label}>
    <title>${label}</title><polyline points=${points.join(" ")} vector-effect="non-scaling-stroke" /></svg>`;
}
