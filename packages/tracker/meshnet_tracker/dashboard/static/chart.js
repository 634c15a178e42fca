// Tokens/s and running calls over the last ten minutes, drawn by uPlot on a canvas that fills its panel.
import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { useIsDark } from "./theme.js";
import { number, timeOfDay } from "./format.js";

const WINDOW_S = 600;

function options({ width, height }) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  // Sizes follow the page's own, which a wall screen enlarges.
  const unit = parseFloat(style.fontSize) / 16;
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `${11 * unit}px system-ui`, gap: 5 * unit };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { range: () => [Date.now() / 1000 - WINDOW_S, Date.now() / 1000] }, tps: { range: (_, low, high) => [0, Math.max(1, 1.15 * high)] }, calls: { range: (_, low, high) => [0, Math.max(4, 2 * high)] } },
    axes: [{ ...axis, space: 80 * unit, size: 24 * unit, values: (_, times) => times.map(timeOfDay) }, { ...axis, scale: "tps", size: 44 * unit }, { ...axis, scale: "calls", side: 1, size: 34 * unit, grid: { show: false } }],
    series: [
      {},
      { label: "tokens/s", scale: "tps", stroke: colour("--accent"), fill: colour("--accent-soft"), width: 2 * unit, points: { show: false } },
      { label: "running", scale: "calls", stroke: colour("--second"), width: 1.5 * unit, dash: [4, 3], points: { show: false } },
    ],
  };
}

export function PulseChart({ history }) {
  const box = useRef(null);
  const plot = useRef(null);
  const dark = useIsDark();
  const data = [0, 1, 2].map((column) => history.map((row) => (column ? row[column] : Date.now() / 1000 - row[0])));
  useEffect(() => {
    const size = () => ({ width: box.current.clientWidth, height: box.current.clientHeight });
    plot.current = new globalThis.uPlot(options(size()), data, box.current);
    const observer = new ResizeObserver(() => plot.current.setSize(size()));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [dark]);
  useEffect(() => plot.current?.setData(data), [history]);
  const now = history.length ? history[history.length - 1] : [0, 0, 0];
  return html`<div class="chart" ref=${box} role="img" aria-label="The last ten minutes: now ${number(now[1])} tokens per second, ${now[2]} calls running"></div>`;
}
