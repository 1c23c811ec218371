import type { Event } from '../types';
import { to } from '../route';
import { clock } from '../text';
import { Age, Empty, State, T, Table } from './basics';

function link(e: Event): string {
  if (e.instance) return to('instance', e.instance);
  if ((e.kind === 'kind' || e.kind === 'resource') && e.tenant) return to(e.kind, e.tenant + '/' + e.object);
  if (e.kind === 'app') return to('app', (e.tenant ? e.tenant + '/' : '') + e.object);
  if (e.kind === 'cluster') return to('cluster', e.cluster || e.object);
  return '';
}

export function EventTable({ events, empty = 'No events are kept.', command = 'treeline events -w' }: { events: Event[]; empty?: string; command?: string }) {
  if (events.length === 0) return <Empty command={command}>{empty}</Empty>;
  return (
    <Table
      label="Events"
      rows={events}
      id={(e) => String(e.seq)}
      columns={[
        { name: 'Age', of: (e) => <Age of={e.time} /> },
        { name: 'Time', wide: true, of: (e) => <span class="faint">{clock(e.time)}</span> },
        {
          name: 'Object',
          of: (e) =>
            link(e) ? (
              <a href={link(e)}>
                <T>{e.object}</T>
              </a>
            ) : (
              <T>{e.object}</T>
            ),
        },
        { name: 'State', of: (e) => (e.state ? <State of={e.state} note={e.reason} /> : <T>{e.reason}</T>) },
        { name: 'Detail', of: (e) => e.detail && <span class="detail"><T>{e.detail}</T></span> },
        { name: 'From', wide: true, of: (e) => <span class="faint"><T>{e.tier}</T></span> },
      ]}
    />
  );
}
