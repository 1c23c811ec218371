// The states of an instance with the time between them.
import type { Event } from '../types';
import { duration } from '../text';
import { Empty, State } from './basics';

const order = ['registered', 'requested', 'cluster_scheduled', 'node_scheduled', 'created', 'running'];

// Reasons of events that are no change of the state.
const notes = ['access', 'out_of_bounds', 'capped'];

/** How far a state is; the ends are after all others. */
function rank(state: string): number {
  const n = order.indexOf(state);
  return n < 0 ? order.length : n;
}

/** The events of states, a row for each placement or start: each begins where the state goes back. */
export function rows(events: Event[]): Event[][] {
  const out: Event[][] = [];
  for (const e of events) {
    if (!e.state || e.kind !== 'instance' || notes.includes(e.reason || '')) continue;
    const row = out[out.length - 1];
    const last = row?.[row.length - 1];
    if (last?.state === e.state && last.reason === e.reason) continue;
    if (!last || rank(e.state) < rank(last.state!)) out.push([e]);
    else row.push(e);
  }
  return out;
}

export function Lifecycle({ events }: { events: Event[] }) {
  const all = rows(events);
  if (all.length === 0) return <Empty command="treeline events -w">No state of it is recorded yet.</Empty>;
  return (
    <ol class="lifecycle">
      {all.slice(-6).map((row, n) => (
        <li key={n}>
          <ol>
            {row.slice(-12).map((e, k, shown) => (
              <li key={e.seq} title={e.time}>
                {k > 0 && <span class="took" aria-label="after">{duration(Date.parse(e.time) - Date.parse(shown[k - 1].time))}</span>}
                <State of={e.state!} note={e.reason} />
              </li>
            ))}
          </ol>
        </li>
      ))}
    </ol>
  );
}
