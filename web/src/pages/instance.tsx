import { useEffect } from 'preact/hooks';
import type { Event, Why } from '../types';
import { get, segment } from '../http';
import { Age, DataAge, Empty, Failure, State, T, useLive, useLoaded } from '../parts/basics';
import { Log, Shell } from '../parts/console';
import { EventTable } from '../parts/events';
import { WhyView } from '../parts/funnel';
import { Lifecycle } from '../parts/lifecycle';
import { InstanceLoad } from '../parts/load';
import { live } from '../live';
import { to } from '../route';
import { serviceOf, short } from '../text';

export function InstancePage({ id }: { id: string }) {
  const l = useLive();
  const service = serviceOf(id);
  useEffect(() => live.watch('instance', service), [service]);
  const i = l.get('instance', id);
  const app = l.get('service', service)?.app;
  const kept = useLoaded((s) => get<{ items: Event[] }>('/v1/events?tail=200&instance=' + encodeURIComponent(id), s), id);
  const why = useLoaded((s) => get<Why>('/v1/instances/' + segment(id) + '/why', s), i ? id + '@' + i.revision : '');
  // The events of the list, and those that came by the stream since.
  const seen = new Map<number, Event>();
  for (const e of kept.value?.items || []) seen.set(e.seq, e);
  for (const e of l.events) if (e.instance === id) seen.set(e.seq, e);
  const events = [...seen.values()].sort((a, b) => a.seq - b.seq);
  return (
    <>
      <p class="path">
        <a href={to('apps')}>Applications</a> ▸ {app && <><a href={to('app', app)}><T>{short(app)}</T></a> ▸ </>} <a href={to('service', service)}><T>{short(service)}</T></a>
      </p>
      <div class="title">
        <h1><T>{short(id)}</T></h1>
        {i && <State of={i.leaving ? 'stopping' : i.state} note={i.reason} />}
      </div>
      {!i && l.has('instance', service) && <Empty command={'treeline get instances --service ' + short(service)}>This instance has been removed. Its events are kept below.</Empty>}
      {i?.violated && <p class="stale">Violates its SLA: <T>{i.violated}</T></p>}
      {i && (
        <dl class="facts">
          <dt>In this state for</dt>
          <dd><Age of={i.since} />{i.detail && <> — <T>{i.detail}</T></>}</dd>
          {i.cluster && (
            <>
              <dt>Place</dt>
              <dd>
                cluster <a href={to('cluster', i.cluster)}><T>{i.cluster}</T></a>
                {i.node && <>, node <a href={to('node', i.cluster, i.node)}><T>{i.node}</T></a></>}
                {i.stale && <span class="stale"> (the cluster does not report)</span>}
              </dd>
            </>
          )}
          {i.address && (
            <>
              <dt>Address</dt>
              <dd><code><T>{i.address}</T></code></dd>
            </>
          )}
          <dt>Restarts</dt>
          <dd>{i.restarts}, placed {i.placements === 1 ? 'once' : i.placements + ' times'}</dd>
        </dl>
      )}
      {i?.state === 'running' && <InstanceLoad id={id} />}
      <section aria-label="Lifecycle">
        <h2>Lifecycle</h2>
        <Lifecycle events={events} />
      </section>
      {i && (
        <section aria-label="Placement">
          <h2>{i.cluster ? 'Why it is there' : 'Why it is not placed'}</h2>
          {why.value && <WhyView why={why.value} />}
          <Failure of={why.error} />
          <div class="asked">
            <DataAge at={why.at} />
            <button type="button" onClick={why.again}>Ask again</button>
            {!i.cluster && <a href="/docs/how-to/troubleshooting#an-instance-has-no-place">What helps</a>}
          </div>
        </section>
      )}
      {i && i.cluster && i.state !== 'requested' && (
        <section aria-label="Output of the instance">
          <h2>Output</h2>
          <Log id={id} restarts={i.restarts} />
        </section>
      )}
      {i && i.state === 'running' && (
        <section aria-label="Terminal">
          <h2>Terminal</h2>
          <Shell id={id} />
        </section>
      )}
      <section>
        <h2>Events</h2>
        <p>
          <a href="/docs/how-to/troubleshooting#reasons-of-states-and-events">What the reasons mean</a>
        </p>
        <EventTable events={[...events].reverse()} />
      </section>
    </>
  );
}
