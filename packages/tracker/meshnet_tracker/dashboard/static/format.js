// Numbers and names as people read them. An en dash where nothing is known.
export const UNKNOWN = "–";

export const number = (value, digits = 1) => (value == null ? UNKNOWN : value.toFixed(digits));

export const percent = (share) => (share == null ? UNKNOWN : `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %`);

export function duration(seconds) {
  if (seconds == null) return UNKNOWN;
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export const timeOfDay = (unixSeconds) => new Date(1000 * unixSeconds).toLocaleTimeString([], { hour12: false });

export const instanceOf = (nodeId) => nodeId.split(".", 1)[0];

export const modelName = (modelKey) => (modelKey ? modelKey.split("@", 1)[0] : UNKNOWN);

// The hops of a signature: `model | node[0-16] -> node[0-29]`. It names shards; a hop runs what its predecessor left.
export function hopsOfSignature(signature) {
  let next = 0;
  return signature
    .slice(signature.indexOf(" | ") + 3)
    .split(" -> ")
    .map((hop) => {
      const last = Number(/-(\d+)\]$/.exec(hop)?.[1]);
      const found = { node_id: hop.replace(/\[[^\]]*\]$/, ""), start_layer: next, end_layer: last };
      next = last + 1;
      return found;
    });
}

// Why a route was taken, in a sentence. A reason that is not listed says it itself.
const REASONS = {
  pinned: "the request named these nodes",
  "cold-start": "nothing was measured yet, so the route that promised most",
  proven: "drawn among the measured routes, the faster the likelier",
  stale: "measured before the nodes changed, so measured again",
  unsampled: "never measured before",
  decayed: "its measurements were old, so measured again",
  quickest: "expected to be the quickest at that moment",
  unproven: "too little was known of it",
  "second look": "it had seemed slow, so it was looked at again",
  "on trial": "one of its nodes had failed, and was tried again",
  "passed-over chain": "no listed candidate was left, so another chain of nodes",
  "settling node": "only a node that came and went lately was left",
  "suspected node": "only a node that others could not reach was left",
};

export const reasonText = (reason) => REASONS[reason] ?? reason;
