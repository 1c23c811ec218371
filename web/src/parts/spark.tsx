// Figures over time, since the page was opened.
import { useRef } from 'preact/hooks';

const maxValues = 60;
const maxNames = 1000;

export type History = Map<string, number[]>;

/** Keeps the newest values by name. at changes with each measurement; 0: there is none yet. */
export function useHistory(at: number, now: [name: string, value: number][]): History {
  const kept = useRef<{ at: number; of: History }>({ at: 0, of: new Map() });
  if (at && at !== kept.current.at) {
    const of: History = new Map();
    for (const [name, value] of now.slice(0, maxNames)) of.set(name, [...(kept.current.of.get(name) || []), value].slice(-maxValues));
    kept.current = { at, of };
  }
  return kept.current.of;
}

/** Draws values from 0 to top, or to the highest; text is the newest one. */
export function Spark({ values, top, label, text }: { values?: number[]; top?: number; label: string; text: string }) {
  const all = values || [];
  const high = Math.max(top || 0, ...all) || 1;
  const x = (n: number) => 100 - (all.length - 1 - n) * (100 / (maxValues - 1));
  const y = (v: number) => 19 - (18 * Math.min(high, Math.max(0, v))) / high;
  return (
    <span class="spark">
      <svg viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label={label + ': ' + text + ', ' + all.length + ' measurements'}>
        {all.length > 0 && <polyline points={all.map((v, n) => x(n).toFixed(1) + ',' + y(v).toFixed(1)).join(' ')} />}
        {all.length === 1 && <circle cx="99" cy={y(all[0])} r="1" />}
      </svg>
      <span>{text}</span>
    </span>
  );
}
