import { useState } from 'preact/hooks';
import { useLive } from '../parts/basics';
import { EventTable } from '../parts/events';

export function Events() {
  const l = useLive();
  const [text, setText] = useState('');
  const found = l.events.filter((e) => !text || [e.object, e.state, e.reason, e.detail, e.tier].some((v) => v?.includes(text)));
  return (
    <>
      <h1>Events</h1>
      <label class="filter">
        Filter <input type="search" value={text} onInput={(e) => setText(e.currentTarget.value)} placeholder="object, state, reason" />
      </label>
      <EventTable events={found.reverse()} />
    </>
  );
}
