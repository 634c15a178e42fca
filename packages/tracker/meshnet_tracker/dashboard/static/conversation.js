// The one conversation of this browser tab. It outlives the chat page, so that an answer goes on, and is still there,
// after a look at another page.
import { useEffect, useState } from "./vendor/htm-preact.js";
import { streamChat } from "./chat_stream.js";

export const MAX_TOKENS = 512;

let state = { turns: [], isBusy: false };
let abort = null;
const listeners = new Set();

function set(news) {
  state = { ...state, ...news };
  listeners.forEach((listener) => listener(state));
}

export function useConversation() {
  const [current, setCurrent] = useState(state);
  useEffect(() => {
    setCurrent(state);
    listeners.add(setCurrent);
    return () => listeners.delete(setCurrent);
  }, []);
  return current;
}

export const stop = () => abort?.abort();

export const startAnew = () => set({ turns: [] });

// What went wrong is shown, and not told to the model.
export async function ask(question, { model, route }) {
  const history = [...state.turns, { role: "user", content: question }];
  let answer = { role: "assistant", content: "", thought: "" };
  const show = (news) => set({ turns: [...history, (answer = { ...answer, ...news })] });
  show({});
  set({ isBusy: true });
  abort = new AbortController();
  const started = performance.now();
  try {
    const messages = history.filter((turn) => !turn.error).map(({ role, content }) => ({ role, content }));
    for await (const { text, thought, finishReason, usage } of streamChat({ model, messages, route, maxTokens: MAX_TOKENS, signal: abort.signal, onRoute: show })) {
      if (text || thought) show({ content: answer.content + text, thought: answer.thought + thought });
      if (finishReason === "length") show({ isCut: true });
      if (usage) show({ tokens: usage.completion_tokens, seconds: (performance.now() - started) / 1000 });
    }
  } catch (problem) {
    show({ error: problem.name === "AbortError" ? "Stopped." : problem.message });
  }
  set({ isBusy: false });
}
