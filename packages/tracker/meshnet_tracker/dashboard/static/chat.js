// Try a model from the browser: see the route each answer took, or pin one.
import { html, useRef, useState } from "./vendor/htm-preact.js";
import { usePoll } from "./api.js";
import { streamChat } from "./chat_stream.js";
import { hopsOfSignature, instanceOf, modelName, number } from "./format.js";
import { Failure, Hint, Panel, RouteChips } from "./pieces.js";

const POLL_MS = 4000;
const MAX_TOKENS = 512;

export function Chat() {
  const { data, error } = usePoll("/v1/routing", POLL_MS);
  const [turns, setTurns] = useState([]);
  const [modelKey, setModelKey] = useState("");
  const [pin, setPin] = useState("");
  const [isBusy, setBusy] = useState(false);
  const abort = useRef(null);
  const models = data?.models.filter((model) => model.candidates.length) ?? [];
  const model = models.find((one) => one.model === modelKey) ?? models[0];
  const arm = model?.candidates.find((one) => one.signature === pin);

  const ask = async (question) => {
    const history = [...turns, { role: "user", content: question }];
    let answer = { role: "assistant", content: "" };
    const show = (news) => setTurns([...history, (answer = { ...answer, ...news })]);
    show({});
    setBusy(true);
    abort.current = new AbortController();
    const started = performance.now();
    try {
      const messages = history.filter((turn) => !turn.error).map(({ role, content }) => ({ role, content }));
      const route = arm?.hops.map((hop) => hop.node_id);
      for await (const { text, usage } of streamChat({ model: model.model, messages, route, maxTokens: MAX_TOKENS, signal: abort.current.signal, onRoute: show })) {
        if (text) show({ content: answer.content + text });
        if (usage) show({ tokens: usage.completion_tokens, seconds: (performance.now() - started) / 1000 });
      }
    } catch (problem) {
      show({ error: problem.name === "AbortError" ? "Stopped." : problem.message });
    }
    setBusy(false);
  };

  return html`<h1 class="visually-hidden">Chat</h1><${Failure} message=${error} />
    <${Panel} id="chat" title="Chat" aside=${turns.length > 0 && !isBusy && html`<button onClick=${() => setTurns([])}>New chat</button>`}>
      ${data && !model && html`<${Hint} title="Nobody to talk to yet">No model is served. Start a node: <code>meshnet node --model smollm2 --tracker ${location.origin}</code></${Hint}>`}
      ${model && html`<div class="filter">
        <label>model <select value=${model.model} onChange=${(event) => (setModelKey(event.target.value), setPin(""))}>${models.map((one) => html`<option value=${one.model}>${modelName(one.model)}</option>`)}</select></label>
        <label class="grow">route <select value=${arm ? pin : ""} onChange=${(event) => setPin(event.target.value)}><option value="">let the tracker choose</option>
          ${model.candidates.map((one) => html`<option value=${one.signature}>${one.hops.map((hop) => `${instanceOf(hop.node_id)} ${hop.start_layer}-${hop.end_layer}`).join(" → ")} (${one.tps ? `${number(one.tps)} tok/s` : one.status})</option>`)}</select></label></div>
        <div class="turns" role="log" aria-label="Conversation" tabindex="0">
          ${!turns.length && html`<p class="muted">Ask something. Each answer says which route it took; pin a route above to compare them.</p>`}
          ${turns.map((turn, index) => html`<${Turn} key=${index} turn=${turn} isOpen=${isBusy && index === turns.length - 1} />`)}</div>
        <${Composer} ask=${ask} stop=${() => abort.current?.abort()} isBusy=${isBusy} />`}
    </${Panel}>`;
}

const Turn = ({ turn, isOpen }) => html`<article class="turn" data-role=${turn.role}>
  <p class="text">${turn.content}${isOpen && html`<span class="caret" aria-hidden="true"></span>`}</p>
  ${turn.error && html`<p class="failure" role="alert">${turn.error}</p>`}
  ${turn.signature && html`<p class="took"><${RouteChips} hops=${hopsOfSignature(turn.signature)} />
    ${turn.seconds && html`<span class="muted">${turn.tokens} tokens, ${number(turn.tokens / turn.seconds)} tok/s</span>`} <a href="#calls/${turn.requestId}">why this route?</a></p>`}</article>`;

function Composer({ ask, stop, isBusy }) {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (!text.trim() || isBusy) return;
    ask(text.trim());
    setText("");
  };
  const onKeyDown = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && send(event);
  return html`<form class="composer" onSubmit=${send}><label class="visually-hidden" for="question">Your message</label>
    <textarea id="question" rows="2" placeholder="Message (Enter sends, Shift+Enter is a new line)" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    ${isBusy ? html`<button type="button" onClick=${stop}>Stop</button>` : html`<button class="primary" disabled=${!text.trim()}>Send</button>`}</form>`;
}
