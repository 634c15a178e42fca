// Who holds which layers: one row per node, a bar over the model's layer axis. The departed stay for a while.
import { html } from "./vendor/htm-preact.js";
import { duration, instanceOf, modelName, number } from "./format.js";
import { Badge, Hint, Panel, Scroller } from "./pieces.js";

const POOR_REPUTATION = 0.5;

export function Nodes({ overview }) {
  const { models, nodes, departed } = overview;
  if (!nodes.length && !departed.length) {
    return html`<${Panel} id="nodes" title="Nodes"><${Hint} title="No node yet">
      Start one on any machine that reaches this tracker: <code>meshnet node --model smollm2 --tracker ${location.origin}</code></${Hint}></${Panel}>`;
  }
  const counted = (state) => nodes.filter((node) => node.state === state).length;
  const aside = ["ready", "draining", "suspected", "settling"].filter(counted).map((state) => `${counted(state)} ${state}`).join(", ");
  return html`<${Panel} id="nodes" title="Nodes" aside=${aside}><${Scroller} label="Nodes and their layers">
    <table class="nodes stacked"><thead><tr><th scope="col">node</th><th scope="col" class="wide">layers</th><th scope="col">state</th>
      <th scope="col" class="num">queue</th><th scope="col" class="num">tokens/s</th><th scope="col" class="num">reputation</th><th scope="col" class="num">heard</th></tr></thead>
      ${departed.length > 0 && html`<tbody><tr class="group"><th scope="rowgroup">gone lately</th><td colspan="6"></td></tr>
        ${departed.map((node) => html`<${Departed} key=${node.node_id + node.age_s} node=${node} models=${models} />`)}</tbody>`}
      ${models.map((model) => html`<${ModelNodes} key=${model.model} model=${model} nodes=${nodes.filter((node) => node.model === model.model)} />`)}
    </table></${Scroller}></${Panel}>`;
}

const ModelNodes = ({ model, nodes }) => html`<tbody>
  <tr class="group"><th scope="rowgroup">${model.name}</th><td class="wide"><${Axis} count=${model.layer_count} nodes=${nodes} /></td><td colspan="5"></td></tr>
  ${nodes
    .sort((a, b) => a.first - b.first || a.last - b.last || a.node_id.localeCompare(b.node_id, "en", { numeric: true }))
    .map((node) => html`<${NodeRow} key=${node.node_id} node=${node} layerCount=${model.layer_count} />`)}</tbody>`;

const NodeRow = ({ node, layerCount }) => html`<tr>
  <th scope="row" title=${node.node_id}>${instanceOf(node.node_id)}</th>
  <td class="wide"><${LayerBar} first=${node.first} last=${node.last} count=${layerCount} state=${node.state} entries=${node.entry_layers} /></td>
  <td class="state"><${Badge} kind=${node.state} /></td>
  <td class="num ${node.queue_depth > node.slots ? "warn" : ""}" data-label="queue">${node.queue_depth}<small> / ${node.slots}</small></td>
  <td class="num" data-label="tokens/s">${number(node.tokens_per_s)}</td>
  <td class="num ${node.reputation < POOR_REPUTATION ? "warn" : ""}" data-label="reputation">${number(node.reputation, 2)}</td>
  <td class="num" data-label="heard">${duration(node.heartbeat_age_s)}</td></tr>`;

function Departed({ node, models }) {
  const [first, last] = node.shard.split("-").map(Number);
  const count = models.find((model) => model.model === node.model)?.layer_count ?? last + 1;
  return html`<tr class="gone"><th scope="row" title=${node.node_id}>${instanceOf(node.node_id)}</th>
    <td class="wide"><${LayerBar} first=${first} last=${last} count=${count} state=${node.state} entries=${[]} /></td>
    <td class="state"><${Badge} kind=${node.state} /></td><td colspan="4" class="num wide">${modelName(node.model)}, ${duration(node.age_s)} ago</td></tr>`;
}

// A model of one layer stands behind another server, which has all of it.
function LayerBar({ first, last, count, state, entries }) {
  const words = count === 1 ? "the whole model, behind another server" : `layers ${first} to ${last} of ${count}`;
  return html`<span class="layers" role="img" aria-label=${words}>
    <span class="layer-bar" data-kind=${state} style=${{ left: `${(100 * first) / count}%`, width: `${(100 * (last - first + 1)) / count}%` }}><span>${count === 1 ? words : `${first}-${last}`}</span></span>
    ${entries.filter((layer) => layer > first).map((layer) => html`<i style=${{ left: `${(100 * layer) / count}%` }} title="can be entered at layer ${layer}"></i>`)}
  </span>`;
}

// The layer numbers, and in red those that no ready node holds.
function Axis({ count, nodes }) {
  if (count === 1) return null;
  const ticks = [0, 0.25, 0.5, 0.75].map((part) => Math.round(part * count));
  return html`<span class="axis" aria-hidden="true">${ticks.map((layer) => html`<span style=${{ left: `${(100 * layer) / count}%` }}>${layer}</span>`)}<span class="end">${count - 1}</span>
    ${gaps(count, nodes).map(([first, next]) => html`<b title="layers ${first}-${next - 1} are missing" style=${{ left: `${(100 * first) / count}%`, width: `${(100 * (next - first)) / count}%` }}></b>`)}</span>`;
}

function gaps(count, nodes) {
  const found = [];
  let next = 0;
  for (const { first, last } of nodes.filter((node) => node.state === "ready").sort((a, b) => a.first - b.first)) {
    if (first > next) found.push([next, first]);
    next = Math.max(next, last + 1);
  }
  return next < count ? [...found, [next, count]] : found;
}
