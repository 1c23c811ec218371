import type { Event } from '../../types';
import { get, Page } from '../../http';
import { DataAge, Failure, useLoaded } from '../../parts/basics';
import { EventTable } from '../../parts/events';

export function OwnEvents() {
  const all = useLoaded((s) => get<Page<Event>>('/v1/events', s), 'events', 5000);
  return (
    <>
      <h1>Access to instances</h1>
      <p class="faint">Terminals, attachments and forwarded ports through this cluster's own port.</p>
      <Failure of={all.error} />
      {all.value && <EventTable events={[...(all.value.items || [])].reverse().slice(0, 500)} />}
      <DataAge at={all.at} />
    </>
  );
}
