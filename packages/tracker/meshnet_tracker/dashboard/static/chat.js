// Try a model from the browser: see the route each answer took, or pin one.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { usePoll } from "./api.js";
import { ask, MAX_TOKENS, startAnew, stop, useConversation } from "./conversation.js";
import { hopsOfSignature, instanceOf, modelName, number } from "./format.js";
import { Failure, Hint, Panel, RouteChips } from "./pieces.js";

const POLL_MS = 4000;
const NEAR_END_PX = 60;

export function Chat() {
  const { data, error } = usePoll("/v1/routing", POLL_MS);
  const { turns, isBusy } = useConversation();
  const [modelKey, setModelKey] = useState("");
  const [pin, setPin] = useState("");
  const models = data?.models.filter((model) => model.candidates.length) ?? [];
  const model = models.find((one) => one.model === modelKey) ?? models[0];
  const arm = model?.candidates.find((one) => one.signature === pin);
  const send = (question) => ask(question, { model: model.model, route: arm?.hops.map((hop) => hop.node_id) });

  return html`<h1 class="visually-hidden">Chat</h1><${Failure} message=${error} />
    <${Panel} id="chat-panel" title="Chat" aside=${turns.length > 0 && !isBusy && html`<button onClick=${startAnew}>New chat</button>`}>
      ${data && !model && html`<${Hint} title="Nobody to talk to yet">No model is served. Start a node: <code>meshnet node --model smollm2 --tracker ${location.origin}</code></${Hint}>`}
      ${model && html`<div class="filter">
        <label>model <select value=${model.model} onChange=${(event) => (setModelKey(event.target.value), setPin(""))}>${models.map((one) => html`<option value=${one.model}>${modelName(one.model)}</option>`)}</select></label>
        <label class="grow">route <select value=${arm ? pin : ""} onChange=${(event) => setPin(event.target.value)}><option value="">let the tracker choose</option>
          ${model.candidates.map((one) => html`<option value=${one.signature}>${one.hops.map((hop) => `${instanceOf(hop.node_id)} ${hop.start_layer}-${hop.end_layer}`).join(" → ")} (${one.tps ? `${number(one.tps)} tok/s` : one.status})</option>`)}</select></label></div>`}
      ${(model || turns.length > 0) && html`<${Turns} turns=${turns} isBusy=${isBusy} /><${Composer} send=${send} isBusy=${isBusy} isReady=${Boolean(model)} />`}
    </${Panel}>`;
}

// Follows the newest words, unless somebody has scrolled back to read.
function Turns({ turns, isBusy }) {
  const box = useRef(null);
  const isAtEnd = useRef(true);
  const onScroll = ({ target }) => (isAtEnd.current = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR_END_PX);
  useEffect(() => void (isAtEnd.current = true), [turns.length]);
  useEffect(() => {
    if (isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [turns]);
  return html`<div class="turns" ref=${box} role="log" aria-label="Conversation" aria-busy=${isBusy} tabindex="0" onScroll=${onScroll}>
    ${!turns.length && html`<p class="muted">Ask something. Each answer says which route it took; pin a route above to compare them.</p>`}
    ${turns.map((turn, index) => html`<${Turn} key=${index} turn=${turn} isOpen=${isBusy && index === turns.length - 1} />`)}</div>`;
}

const Turn = ({ turn, isOpen }) => html`<article class="turn" data-role=${turn.role} aria-label=${turn.role === "user" ? "You" : "The model"}>
  ${turn.thought && html`<details open=${isOpen && !turn.content}><summary>${isOpen && !turn.content ? "Thinking…" : "Thoughts"}</summary><p class="text muted">${turn.thought}</p></details>`}
  <p class="text">${turn.content}${isOpen && html`<span class="caret" aria-hidden="true"></span>`}</p>
  ${turn.isCut && html`<p class="muted">Cut off: this page asks for at most ${MAX_TOKENS} tokens.</p>`}
  ${turn.error && html`<p class="failure" role="alert">${turn.error}</p>`}
  ${turn.signature && html`<p class="took"><${RouteChips} hops=${hopsOfSignature(turn.signature)} />
    ${turn.seconds && html`<span class="muted">${turn.tokens} tokens, ${number(turn.tokens / turn.seconds)} tok/s</span>`} <a href="#calls/${turn.requestId}">why this route?</a></p>`}</article>`;

function Composer({ send, isBusy, isReady }) {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (!text.trim() || isBusy || !isReady) return;
    send(text.trim());
    setText("");
  };
  const onKeyDown = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event);
  return html`<form class="composer" onSubmit=${submit}><label class="visually-hidden" for="question">Your message</label>
    <textarea id="question" rows="2" placeholder="Message (Enter sends, Shift+Enter is a new line)" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    ${isBusy ? html`<button type="button" onClick=${stop}>Stop</button>` : html`<button class="primary" disabled=${!text.trim() || !isReady}>Send</button>`}</form>`;
}
