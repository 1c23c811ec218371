import type { Event } from '../../types';
import { get, Page } from '../../http';
import { DataAge, Failure, useLoaded } from '../../parts/basics';
import { RecordTable } from '../../parts/events';

export function OwnEvents() {
  const all = useLoaded((s) => get<Page<Event>>('/v1/events', s), 'events', 5000);
  return (
    <>
      <h1>Events</h1>
      <p class="faint">Who reached instances and changed something through this cluster's own port, and for requests that the root passed on.</p>
      <Failure of={all.error} />
      {all.value && <RecordTable events={[...(all.value.items || [])].reverse().slice(0, 500)} />}
      <DataAge at={all.at} />
    </>
  );
}
