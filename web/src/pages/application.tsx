import type { Latencies, Service } from '../types';
import { get, segment, send } from '../http';
import { Age, DataAge, Dangerous, Empty, Failure, State, T, Table, useLive, useLoaded } from '../parts/basics';
import { Graph } from '../parts/graph';
import { linksOf, withLatencies } from '../document';
import { EventTable } from '../parts/events';
import { within } from '../live';
import { to } from '../route';
import { count, cpus, memory, short } from '../text';
import { standing } from './applications';

const refresh = 10_000; // ms; clusters have no stream of latencies

/** The services and links of an application, with the round trips that its clusters know. */
function Links({ id, services }: { id: string; services: Service[] }) {
  const links = linksOf(services.map((s) => s.spec));
  const now = useLoaded((s) => get<Latencies>('/v1/apps/' + segment(id) + '/latency', s), links.length > 0 ? id : '', refresh);
  return (
    <>
      <h2>Links</h2>
      <Graph
        services={services.map((s) => ({ name: s.spec.microservice_name, note: s.running + ' of ' + s.replicas + ' run' + (s.dormant ? ', ' + s.dormant + ' dormant' : ''), tone: s.running + (s.dormant || 0) + (s.completed || 0) < s.replicas ? 'busy' : 'good' }))}
        links={withLatencies(links, now.value?.links || [])}
      />
      {links.length > 0 && (
        <>
          <p class="faint">
            ≤ demanded; ✓ or ✕ the longest round trip of an instance now, measured by its connections, or ≈ estimated by its node's coordinates.
            {(now.value?.silent || []).length > 0 && <span class="stale"> Without an answer: <T>{now.value!.silent!.join(', ')}</T>.</span>}
          </p>
          <Failure of={now.error} />
          <DataAge at={now.at} />
        </>
      )}
    </>
  );
}

export function ApplicationPage({ id }: { id: string }) {
  const l = useLive();
  const app = l.get('app', id);
  if (!app)
    return (
      <>
        <h1><T>{short(id)}</T></h1>
        {l.loaded ? <Empty command="treeline get apps">There is no such application.</Empty> : <p class="faint">Loading…</p>}
      </>
    );
  const services = l.list('service').filter((s) => s.app === id);
  return (
    <>
      <p class="path"><a href={to('apps')}>Applications</a></p>
      <div class="title">
        <h1><T>{short(id)}</T></h1>
        <State of={standing(app)} />
        {!app.leaving && <a class="button" href={to('deploy', id)}>Change</a>}
        {!app.leaving && (
          <Dangerous name="Delete" title={'Delete ' + short(id) + '?'} act={() => send('DELETE', '/v1/apps/' + segment(id), { headers: { 'If-Match': '*' } })}>
            <p>
              It stops {count(app.running, 'running instance')} of {count(app.services.length, 'service')}:
            </p>
            <ul>{app.services.map((s) => <li key={s}><T>{short(s)}</T></li>)}</ul>
            <p>Its local volumes stay.</p>
          </Dangerous>
        )}
      </div>
      <dl class="facts">
        <dt>Tenant</dt>
        <dd><T>{app.tenant}</T></dd>
        <dt>Instances</dt>
        <dd>{app.running} of {app.wanted} run{app.dormant ? ', ' + app.dormant + ' dormant' : ''}{app.failed ? ', ' + app.failed + ' failed' : ''}</dd>
        <dt>Created</dt>
        <dd><Age of={app.created} /> ago{app.by && <> by <T>{app.by}</T></>}</dd>
      </dl>
      {services.length > 1 && <Links id={id} services={services} />}
      <h2>Services</h2>
      <Table<Service>
        label="Services"
        rows={services}
        id={(s) => s.id}
        columns={[
          { name: 'Name', of: (s) => <a href={to('service', s.id)}><T>{s.spec.microservice_name}</T></a> },
          { name: 'State', of: (s) => <State of={standing({ ...s, wanted: s.replicas, leaving: app.leaving })} /> },
          { name: 'Running', number: true, of: (s) => s.running + ' / ' + s.replicas },
          { name: 'Image or program', wide: true, of: (s) => <T>{s.spec.code}</T> },
          { name: 'Processors', number: true, wide: true, of: (s) => cpus((s.spec.vcpus || 0) * 1000) },
          { name: 'Memory', number: true, wide: true, of: (s) => memory(s.spec.memory || 0) },
        ]}
      />
      <h2>Events</h2>
      <EventTable events={l.events.filter((e) => within((e.tenant ? e.tenant + '/' : '') + e.object, id)).slice(-30).reverse()} />
    </>
  );
}
