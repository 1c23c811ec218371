import { segment } from '../http';
import { may } from '../may';
import { Age, Bar, Empty, State, T, useLive } from '../parts/basics';
import { Nodes } from '../parts/nodes';
import { to } from '../route';
import { cpus, memory } from '../text';

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
      </div>
      {!c && l.loaded && <Empty command="treeline get clusters">There is no such cluster.</Empty>}
      {c && (
        <dl class="facts">
          <dt>Report</dt>
          <dd><Age of={c.heard} /> old</dd>
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
        <Nodes at={'/v1/clusters/' + segment(id) + '/nodes'} join={'treeline token create --node --cluster ' + id} />
      )}
    </>
  );
}
