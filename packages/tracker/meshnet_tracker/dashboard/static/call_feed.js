// The live list of calls. The browser's EventSource reconnects by itself and says which event it saw last.
import { getJson } from "./api.js";
import { useEffect, useState } from "./vendor/htm-preact.js";

const CALLS_KEPT_MAX = 500;

export function useCalls() {
  const [state, setState] = useState({ calls: [], isLive: false, isLoaded: false });
  useEffect(() => {
    const byId = new Map();
    let isPending = false;
    let process = "";
    const show = () => {
      isPending = false;
      const calls = [...byId.values()].sort((a, b) => b.at - a.at);
      calls.splice(CALLS_KEPT_MAX).forEach((call) => byId.delete(call.id));
      setState((before) => ({ ...before, calls, isLoaded: true }));
    };
    const source = new EventSource("/v1/calls/stream");
    source.onopen = () => setState((before) => ({ ...before, isLive: true, isLoaded: true }));
    source.onerror = () => {
      setState((before) => ({ ...before, isLive: false }));
      // Given up for good: where the login has ended, asking in the ordinary way leads to the login page.
      if (source.readyState === EventSource.CLOSED) getJson("/v1/calls?limit=1").catch(() => undefined);
    };
    source.onmessage = (message) => {
      const call = JSON.parse(message.data);
      const sender = message.lastEventId.split("-", 1)[0];
      // A tracker that was restarted tells all it still knows: what ran in the old one has ended.
      if (sender !== process) byId.clear();
      process = sender;
      byId.set(call.id, call);
      // Many calls arrive together; one drawing shows them all.
      if (!isPending) {
        isPending = true;
        setTimeout(show, 100);
      }
    };
    return () => source.close();
  }, []);
  return state;
}
