import type { Cluster, Event, Grant } from '../types';
import { get, Page, segment, send } from '../http';
import { isAdmin, may } from '../may';
import { Age, Bar, DataAge, Dangerous, Empty, Failure, State, T, useLive, useLoaded } from '../parts/basics';
import { capsText, CapsForm } from '../parts/caps';
import { RecordTable } from '../parts/events';
import { JoinForm } from '../parts/join';
import { Nodes } from '../parts/nodes';
import { to } from '../route';
import { clean, cpus, memory } from '../text';

const eventsRefresh = 15_000; // ms

/** Whose services the cluster may run, and what it counts for. */
function Granted({ of: c }: { of: Cluster }) {
  const set = (g: Grant) => send('PUT', '/v1/clusters/' + segment(c.id) + '/grant', { body: g, headers: { 'If-Match': '*' } });
  const admits = c.grant.tenants || [];
  return (
    <section aria-label="Tenants and limits">
      <h2>Tenants and limits</h2>
      <dl class="facts">
        <dt>Owner</dt>
        <dd>{c.tenant ? <T>{c.tenant}</T> : 'the installation'}</dd>
        <dt>Runs services of</dt>
        <dd>{c.grant.open ? 'all tenants' : <T>{[c.tenant || 'the installation', ...admits].join(', ')}</T>}</dd>
        <dt>Counts for at most</dt>
        <dd>{capsText(c.grant.caps) || 'what it reports'}</dd>
      </dl>
      {isAdmin() && (
        <>
          {c.grant.open ? (
            <Dangerous name="Close" title={'Close ' + clean(c.id) + '?'} act={() => set({ ...c.grant, open: false })}>
              <p>It then runs only services of its owner and of the tenants that it admits. Instances of others are stopped at once, and placed in other clusters if there is capacity.</p>
            </Dangerous>
          ) : (
            <Dangerous name="Open" title={'Open ' + clean(c.id) + ' to all tenants?'} plain act={() => set({ ...c.grant, open: true })}>
              <p>It may then run services of all tenants. Its operators can read their files and memory.</p>
            </Dangerous>
          )}
          <CapsForm of={c.grant.caps} nodes save={(caps) => set({ ...c.grant, caps })} />
        </>
      )}
    </section>
  );
}

/** What users did through the cluster's own port. */
function Accesses({ cluster }: { cluster: string }) {
  const all = useLoaded((s) => get<Page<Event>>('/v1/clusters/' + segment(cluster) + '/events', s), cluster, eventsRefresh);
  return (
    <section aria-label="Records of its own port">
      <h2>Records of its own port</h2>
      <Failure of={all.error} />
      {all.value && <RecordTable events={[...(all.value.items || [])].reverse().slice(0, 100)} empty="Nobody has done anything through the cluster's own port." command={'treeline events --cluster ' + cluster} />}
      <DataAge at={all.at} />
    </section>
  );
}

export function ClusterPage({ id }: { id: string }) {
  const l = useLive();
  const c = l.get('cluster', id);
  const shown = c !== undefined && may('nodes', c.tenant || '');
  return (
    <>
      <p class="path"><a href={to('clusters')}>Clusters</a></p>
      <div class="title">
        <h1><T>{id}</T></h1>
        {c && <State of={c.status} />}
        {shown && (
          <span class="buttons">
            <Dangerous name="Remove" title={'Remove ' + clean(id) + '?'} act={() => send('DELETE', '/v1/clusters/' + segment(id), { headers: { 'If-Match': '*' } })}>
              <p>Its certificates are refused from now on, and its instances are placed elsewhere, exclusive ones too. Stop it first: what it cannot be told to stop goes on there.</p>
            </Dangerous>
          </span>
        )}
      </div>
      {!c && l.loaded && <Empty command="treeline get clusters">There is no such cluster.</Empty>}
      {c && (
        <dl class="facts">
          <dt>Report</dt>
          <dd>{c.heard ? <><Age of={c.heard} /> old</> : 'none yet'}</dd>
          <dt>Joined</dt>
          <dd><Age of={c.joined} /> ago{c.version && <>, version <T>{c.version}</T></>}</dd>
          {c.location && <><dt>Location</dt><dd><T>{c.location}</T></dd></>}
          <dt>Processors</dt>
          <dd><Bar label="Processors" part={c.aggregate.capacity.milli_cpu - c.aggregate.free.milli_cpu} of={c.aggregate.capacity.milli_cpu} text={cpus(c.aggregate.free.milli_cpu) + ' of ' + cpus(c.aggregate.capacity.milli_cpu) + ' free'} /></dd>
          <dt>Memory</dt>
          <dd><Bar label="Memory" part={c.aggregate.capacity.memory_mb - c.aggregate.free.memory_mb} of={c.aggregate.capacity.memory_mb} text={memory(c.aggregate.free.memory_mb) + ' of ' + memory(c.aggregate.capacity.memory_mb) + ' free'} /></dd>
          {c.network_error && <><dt>Network</dt><dd class="stale"><T>{c.network_error}</T></dd></>}
        </dl>
      )}
      <h2>Nodes</h2>
      {!shown ? (
        <p class="faint">{l.loaded ? "Only the cluster's operators see its nodes." : 'Loading…'}</p>
      ) : (
        <>
          <Nodes at={'/v1/clusters/' + segment(id) + '/nodes'} join={'treeline token create --node --cluster ' + id} />
          {may('joins', c.tenant || '') && <JoinForm node={id} />}
          <Granted of={c} />
          <Accesses cluster={id} />
        </>
      )}
    </>
  );
}
