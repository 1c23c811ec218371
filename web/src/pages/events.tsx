import { useState } from 'preact/hooks';
import type { Event } from '../types';
import { useLive } from '../parts/basics';
import { EventTable } from '../parts/events';

const choices: [name: string, of: (e: Event) => boolean][] = [
  ['everything', () => true],
  ['access to instances', (e) => e.reason === 'access'],
  ['instances', (e) => e.kind === 'instance' && e.reason !== 'access'],
  ['nodes and clusters', (e) => e.kind === 'node' || e.kind === 'cluster'],
  ['all else', (e) => !['instance', 'node', 'cluster'].includes(e.kind)],
];

export function Events() {
  const l = useLive();
  const [text, setText] = useState('');
  const [choice, choose] = useState(0);
  const wanted = text.toLowerCase();
  const found = l.events.filter((e) => choices[choice][1](e) && (!text || [e.object, e.state, e.reason, e.detail, e.tier, e.cluster].some((v) => v?.toLowerCase().includes(wanted))));
  return (
    <>
      <h1>Events</h1>
      <div class="asked">
        <label class="filter">
          Show{' '}
          <select name="what" value={choice} onChange={(e) => choose(Number(e.currentTarget.value))}>
            {choices.map(([name], n) => <option key={n} value={n}>{name}</option>)}
          </select>
        </label>
        <label class="filter">
          Filter <input type="search" name="filter" value={text} onInput={(e) => setText(e.currentTarget.value)} placeholder="object, state, reason" />
        </label>
        <span class="faint">{found.length} of the newest {l.events.length}</span>
      </div>
      {l.events.length > 0 && found.length === 0 ? <p class="faint">No event matches.</p> : <EventTable events={found.reverse()} />}
    </>
  );
}
