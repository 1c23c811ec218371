// Services and the latencies that they demand of the paths to others, with the measured ones, as a drawing.
import type { Link } from '../document';
import { clean } from '../text';

export interface Drawn {
  name: string;
  note?: string;
  tone?: string;
}

const boxWidth = 150;
const boxHeight = 46;

/** Services in columns: each to the right of those that link to it, cycles aside. */
function places(services: Drawn[], links: Link[]): { at: Map<string, [number, number]>; width: number; height: number } {
  const column = new Map(services.map((s) => [s.name, 0]));
  for (let round = 0; round < Math.min(services.length, 12); round++) {
    let moved = false;
    for (const l of links) {
      const a = column.get(l.from);
      const b = column.get(l.to);
      if (a === undefined || b === undefined || l.from === l.to || b > a || a + 1 >= services.length) continue;
      column.set(l.to, a + 1);
      moved = true;
    }
    if (!moved) break;
  }
  const rows = new Map<number, number>();
  const at = new Map<string, [number, number]>();
  for (const s of services) {
    const c = column.get(s.name)!;
    const r = rows.get(c) || 0;
    rows.set(c, r + 1);
    at.set(s.name, [20 + c * (boxWidth + 110), 20 + r * (boxHeight + 40)]);
  }
  const columns = Math.max(1, ...column.values()) + 1;
  return { at, width: 40 + columns * boxWidth + (columns - 1) * 110, height: 40 + Math.max(1, ...rows.values()) * (boxHeight + 40) - 40 };
}

/** The round trip of a link in words: longest of its instances. */
function measured(l: Link): string {
  const { ms, by } = l.now!;
  if (by === 'node') return 'same node';
  const n = (ms < 10 ? ms.toFixed(1) : Math.round(ms)) + ' ms';
  return by === 'connections' ? n : '≈ ' + n;
}

export function Graph({ services, links, chosen, pick }: { services: Drawn[]; links: Link[]; chosen?: string[]; pick?: (name: string) => void }) {
  const shown = services.slice(0, 40);
  const { at, width, height } = places(shown, links);
  const text = links.map((l) => clean(l.from) + ' to ' + clean(l.to) + ' at most ' + l.ms + ' ms' + (l.now ? ', now ' + measured(l) : '')).join(', ') || 'no links';
  return (
    <div class="graph" tabIndex={0} role="region" aria-label="Services and links">
      <svg width={width} height={height} viewBox={'0 0 ' + width + ' ' + height} role="img" aria-label={shown.length + ' services, ' + text}>
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
            <path d="M0 0 8 4 0 8z" />
          </marker>
        </defs>
        {links.map((l) => {
          const a = at.get(l.from);
          const b = at.get(l.to);
          if (!a || !b) return null;
          const forward = b[0] > a[0];
          const x1 = a[0] + (forward ? boxWidth : 0);
          const x2 = b[0] + (forward ? 0 : boxWidth);
          const y1 = a[1] + boxHeight / 2;
          const y2 = b[1] + boxHeight / 2;
          return (
            <g key={l.from + '>' + l.to} class="edge">
              <path d={`M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`} marker-end="url(#arrow)" />
              <text x={(x1 + x2) / 2} y={(y1 + y2) / 2 - 6} text-anchor="middle">
                ≤ {l.ms} ms
              </text>
              {l.now && (
                <text x={(x1 + x2) / 2} y={(y1 + y2) / 2 + 14} text-anchor="middle" class={'now ' + (l.now.ms > l.ms ? 'bad' : 'good')}>
                  {(l.now.ms > l.ms ? '✕ ' : '✓ ') + measured(l)}
                </text>
              )}
            </g>
          );
        })}
        {shown.map((s) => {
          const [x, y] = at.get(s.name)!;
          return (
            <g key={s.name} class={'box' + (chosen?.includes(s.name) ? ' chosen' : '') + (pick ? ' pick' : '')} onClick={() => pick?.(s.name)}>
              <rect x={x} y={y} width={boxWidth} height={boxHeight} rx="8" />
              <text x={x + boxWidth / 2} y={y + (s.note ? 20 : 28)} text-anchor="middle">
                {clean(s.name).slice(0, 20)}
              </text>
              {s.note && (
                <text x={x + boxWidth / 2} y={y + 37} text-anchor="middle" class={'small ' + (s.tone || '')}>
                  {clean(s.note).slice(0, 26)}
                </text>
              )}
            </g>
          );
        })}
      </svg>
    </div>
  );
}
