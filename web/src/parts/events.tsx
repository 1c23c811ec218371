import type { Event } from '../types';
import { tier } from '../http';
import { to } from '../route';
import { clock } from '../text';
import { Age, Empty, State, T, Table } from './basics';

function link(e: Event): string {
  if (e.instance) return to('instance', e.instance);
  if ((e.kind === 'kind' || e.kind === 'resource') && e.tenant) return to(e.kind, e.tenant + '/' + e.object);
  if ((e.kind === 'secret' || e.kind === 'config') && e.tenant) return to(e.kind, e.tenant + '/' + e.object);
  if (e.kind === 'webhook') return to('webhook', e.object);
  if (e.kind === 'addon') return to('addons');
  if (e.kind === 'app') return to('app', (e.tenant ? e.tenant + '/' : '') + e.object);
  if (e.kind === 'cluster') return to('cluster', e.cluster || e.object);
  return '';
}

function About({ event }: { event: Event }) {
  const url = tier === 'root' ? link(event) : event.instance ? to('instance', event.instance) : '';
  return url ? <a href={url}><T>{event.object}</T></a> : <T>{event.object}</T>;
}

/** Records of operations: who did what. The text has what users chose; only "User" says who it was. */
export function RecordTable({ events, empty = 'No record is kept.', command = 'treeline events --users -o wide' }: { events: Event[]; empty?: string; command?: string }) {
  if (events.length === 0) return <Empty command={command} docs="/docs/how-to/operator#who-did-what">{empty}</Empty>;
  return (
    <Table
      label="Records"
      rows={events}
      id={(e) => String(e.seq)}
      columns={[
        { name: 'Age', of: (e) => <Age of={e.time} /> },
        { name: 'Time', wide: true, of: (e) => <span class="faint">{clock(e.time)}</span> },
        { name: 'User', of: (e) => <T>{e.by}</T> },
        { name: 'Object', of: (e) => <><span class="faint"><T>{e.kind}</T></span> <About event={e} /></> },
        { name: 'What', of: (e) => <span class="detail"><T>{e.detail || e.reason}</T></span> },
        { name: 'Tenant', wide: true, of: (e) => <span class="faint"><T>{e.tenant}</T></span> },
      ]}
    />
  );
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
        { name: 'Object', of: (e) => <About event={e} /> },
        { name: 'State', of: (e) => (e.state ? <State of={e.state} note={e.reason} /> : <T>{e.reason}</T>) },
        { name: 'Detail', of: (e) => e.detail && <span class="detail"><T>{e.detail}</T></span> },
        { name: 'From', wide: true, of: (e) => <span class="faint"><T>{e.tier}</T></span> },
      ]}
    />
  );
}
