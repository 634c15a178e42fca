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

export const timeOfDay = (unixSeconds) => new Date(1000 * unixSeconds).toLocaleTimeString([], { hour12: false });

export const instanceOf = (nodeId) => nodeId.split(".", 1)[0];

export const modelName = (modelKey) => (modelKey ? modelKey.split("@", 1)[0] : UNKNOWN);

// The hops of a signature: `model | node[0-16] -> node[0-29]`. Signatures name shards, not the layers run.
export const hopsOfSignature = (signature) =>
  signature
    .slice(signature.indexOf(" | ") + 3)
    .split(" -> ")
    .map((hop) => ({ node_id: hop.replace(/\[[^\]]*\]$/, ""), shard: /\[([^\]]*)\]$/.exec(hop)?.[1] ?? "" }));
