// The panel "Routing (learned)": exactly what GET /v1/routing says, every four seconds.
import { html } from "./vendor/htm-preact.js";
import { usePoll } from "./api.js";
import { duration, number } from "./format.js";
import { Badge, Failure, Hint, Meter, Panel, RouteChips, Scroller, Sparkline } from "./pieces.js";
import { StepBar, TimingLegend } from "./timing.js";

const POLL_MS = 4000;
const CONFIG_WORDS = {
  policy: (value) => `policy ${value}`,
  explore_share: (value) => `explore share ${value}`,
  weight_alpha: (value) => `alpha ${value}`,
  stats_half_life_s: (value) => `half-life ${value} s`,
  min_sample_tokens: (value) => `at least ${value} tokens a sample`,
};

export function Routing() {
  const { data, error } = usePoll("/v1/routing", POLL_MS);
  const { data: history } = usePoll("/v1/routing/history", POLL_MS);
  return html`<${Panel} id="routing" title="Routing (learned)" aside=${data && html`<${Config} config=${data.config} />`}>
    <${Failure} message=${error} />
    ${data && !data.models.length && html`<${Hint} title="Nothing to route yet">Routes appear as soon as nodes hold all layers of a model; each answered chat then is a measurement.</${Hint}>`}
    ${data?.models.map((model) => html`<${ModelRoutes} key=${model.model} model=${model} arms=${history?.arms ?? {}} />`)}
    ${data?.models.length > 0 && html`<div class="footnote"><${TimingLegend} /><span>Time per step: queue, compute and link of each hop in turn.</span>
      <span>Actual shares count routes that are gone by now, too.</span></div>`}
  </${Panel}>`;
}

// Words for the knobs known here; any other is shown under its own name.
const Config = ({ config }) => html`<ul class="config" aria-label="Active configuration">${Object.entries(config).map(
  ([name, value]) => html`<li>${CONFIG_WORDS[name]?.(value) ?? `${name.replaceAll("_", " ")} ${value}`}</li>`,
)}</ul>`;

function ModelRoutes({ model, arms }) {
  const title = html`<strong>${model.model}</strong> <span class="muted">epoch ${model.epoch}</span>`;
  if (!model.candidates.length) {
    return html`<p class="table-title">${title}</p><${Hint} title="No route holds all layers">The gap is marked red under Nodes. A node started with <code>--layers auto</code> goes there by itself: <code>meshnet node --model … --layers auto --tracker ${location.origin}</code></${Hint}>`;
  }
  return html`<${Scroller} label="Candidates of ${model.model}"><table class="routes stacked">
    <caption>${title}</caption>
    <thead><tr><th scope="col">route</th><th scope="col">status</th><th scope="col" class="num">learned tok/s</th><th scope="col" class="num">coefficient</th>
      <th scope="col">expected share</th><th scope="col">actual share</th><th scope="col" class="num">samples</th><th scope="col" class="num">weight</th>
      <th scope="col" class="num">running</th><th scope="col" class="num">prior</th><th scope="col" class="num">last sample</th><th scope="col">history</th><th scope="col">time per step</th></tr></thead>
    <tbody>${model.candidates.map((arm) => html`<${ArmRow} key=${arm.signature} arm=${arm} why=${model.explanations?.[arm.signature]?.reason} history=${arms[arm.signature]} />`)}</tbody></table></${Scroller}>`;
}

function ArmRow({ arm, why, history }) {
  const speeds = (history?.samples ?? []).map(([, tps]) => tps);
  const last = speeds[speeds.length - 1];
  return html`<tr data-signature=${arm.signature}>
    <th scope="row"><${RouteChips} hops=${arm.hops} /></th>
    <td class="state" title=${why}><${Badge} kind=${arm.status} /></td>
    <td class="num strong" data-label="learned tok/s">${number(arm.tps)}</td>
    <td class="num" data-label="coefficient">${number(arm.coefficient, 2)}</td>
    <td data-label="expected share"><${Meter} share=${arm.expected_share} /></td>
    <td data-label="actual share"><${Meter} share=${arm.actual_share} kind="second" /></td>
    <td class="num" data-label="samples">${arm.samples}</td>
    <td class="num" data-label="weight">${number(arm.weight, 2)}</td>
    <td class="num" data-label="running">${arm.in_flight}</td>
    <td class="num muted" data-label="prior">${number(arm.prior_tps)}</td>
    <td class="num muted" data-label="last sample">${duration(arm.last_sample_age_s)}</td>
    <td data-label="history"><${Sparkline} values=${speeds} label="last ${speeds.length} samples, the latest ${number(last)} tokens per second" /></td>
    <td class="full" data-label="time per step"><${StepBar} hops=${history?.hops ?? []} /></td></tr>`;
}
