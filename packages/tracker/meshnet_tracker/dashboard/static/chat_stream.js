// One chat over the OpenAI endpoint, streamed: tells the route first, then yields what each chunk adds.
import { goToLogin } from "./api.js";

export async function* streamChat({ model, messages, route, maxTokens, signal, onRoute }) {
  const body = { model, messages, stream: true, max_tokens: maxTokens, stream_options: { include_usage: true }, ...(route ? { route } : {}) };
  const response = await fetch("/v1/chat/completions", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
  onRoute({ signature: response.headers.get("x-meshnet-route"), requestId: response.headers.get("x-request-id") });
  if (response.status === 401) goToLogin();
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices[0];
    yield { text: choice?.delta.content ?? "", thought: choice?.delta.reasoning_content ?? "", finishReason: choice?.finish_reason ?? null, usage: chunk.usage ?? null };
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}
