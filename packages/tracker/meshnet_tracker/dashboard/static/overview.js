// The first page: the mesh at a glance, who holds what, and what routing learnt.
import { html } from "./vendor/htm-preact.js";
import { usePoll } from "./api.js";
import { number, plural } from "./format.js";
import { PulseChart } from "./chart.js";
import { Nodes } from "./nodes.js";
import { Failure, Hint, Panel } from "./pieces.js";
import { Routing } from "./routing.js";

const POLL_MS = 2000;

export function Overview() {
  const { data, error } = usePoll("/v1/overview", POLL_MS);
  return html`<h1 class="visually-hidden">Overview</h1><${Failure} message=${error} />
    ${data && html`<${Tiles} overview=${data} />
      <div class="split">
        <${Panel} id="pulse" title="Tokens per second" aside=${html`<${ChartLegend} />`}><${PulseChart} history=${data.history} /></${Panel}>
        <${Models} models=${data.models} />
      </div>
      <${Nodes} overview=${data} />`}
    <${Routing} />`;
}

function Tiles({ overview }) {
  const ready = overview.nodes.filter((node) => node.state === "ready").length;
  const served = overview.models.filter((model) => model.is_served).length;
  return html`<dl class="tiles">
    <div><dt>tokens/s</dt><dd>${number(overview.tokens_per_s)}</dd></div>
    <div><dt>live requests</dt><dd>${overview.in_flight}</dd></div>
    <div><dt>nodes ready</dt><dd>${ready}<small> of ${overview.nodes.length}</small></dd></div>
    <div><dt>models served</dt><dd>${served}<small> of ${overview.models.length}</small></dd></div></dl>`;
}

const ChartLegend = () => html`<ul class="legend"><li><span class="swatch line" aria-hidden="true"></span>tokens/s</li><li><span class="swatch dashed" aria-hidden="true"></span>running</li></ul>`;

const Models = ({ models }) => html`<${Panel} id="models" title="Models">
  ${!models.length && html`<${Hint} title="No model yet">The first node brings one: <code>meshnet node --model smollm2 --tracker ${location.origin}</code></${Hint}>`}
  <ul class="models">${models.map((model) => html`<li key=${model.model}>
    <span class="dot" data-kind=${model.is_served ? "ready" : "lost"} aria-hidden="true"></span>
    <div><strong title=${model.model}>${model.name}</strong><p class=${model.is_served ? "good" : "bad"}>${model.verdict}</p>
      <p class="muted">${kindOf(model)}, ${plural(model.node_count, "node")}, epoch ${model.epoch}, context ${model.context_tokens}</p></div>
    ${model.is_served && html`<a class="button" href="#chat" aria-label="Chat with ${model.name}">Chat</a>`}</li>`)}</ul></${Panel}>`;

// Of a model behind another server nobody here knows the layers.
const kindOf = (model) => (model.layer_count === 1 ? "behind another server" : `${model.architecture}, ${model.layer_count} layers`);
