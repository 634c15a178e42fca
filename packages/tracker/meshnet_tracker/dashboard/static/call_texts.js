// What was asked and answered, where the tracker's owner wants that shown (--show-texts).
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { getJson } from "./api.js";
import { usePageFacts } from "./page_facts.js";

export const CallTexts = ({ call }) => usePageFacts().shows_texts && html`<${Texts} call=${call} />`;

// Asked for anew whenever the call has changed: while it runs that is at each attempt, and at its end.
function Texts({ call }) {
  const [state, setState] = useState({ texts: null, error: null });
  useEffect(() => {
    getJson(`/v1/calls/${encodeURIComponent(call.id)}/text`).then(
      (texts) => setState({ texts, error: null }),
      (error) => setState({ texts: null, error: error.message }),
    );
  }, [call.id, call.revision]);
  if (!state.texts) return html`<h3>Texts</h3><p class="muted">${state.error ?? "…"}</p>`;
  const { prompt, answers, is_prompt_cut, is_answer_cut } = state.texts;
  return html`<h3>Prompt</h3>${is_prompt_cut && html`<p class="muted">Its beginning is not kept.</p>`}
    ${prompt.map((part) => html`<${Said} who=${part.role} text=${part.text} />`)}
    <h3>${answers.length > 1 ? `${answers.length} answers` : "Answer"}</h3>
    ${answers.length ? answers.map((answer) => Object.entries(answer).map(([kind, text]) => html`<${Said} who=${kind.replace("_", " ")} text=${text} />`)) : html`<p class="muted">None yet.</p>`}
    ${is_answer_cut && html`<p class="muted">The rest is not kept.</p>`}`;
}

const Said = ({ who, text }) => html`<p class="said"><small>${who}</small> <span class="text">${text}</span></p>`;
