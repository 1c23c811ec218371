import type { Node } from '../types';
import { useState } from 'preact/hooks';
import { get, Page, post, segment } from '../http';
import { may } from '../may';
import { Age, Bar, DataAge, Dangerous, Empty, Failure, State, T, Table, useLive, useLoaded } from '../parts/basics';
import { to } from '../route';
import { clean, count, cpus, memory } from '../text';

const refresh = 5000; // ms; clusters have no stream of their nodes

/** What an operator does with a node before maintenance, and after it. */
function Commands({ node, cluster, again }: { node: Node; cluster: string; again: () => void }) {
  const [error, setError] = useState<unknown>();
  const act = async (what: string) => {
    await post('/v1/clusters/' + segment(cluster) + '/nodes/' + segment(node.id) + '/' + what);
    again();
  };
  if (node.status === 'joining' || node.status === 'silent') return null;
  if (node.status !== 'ready')
    return (
      <>
        <button type="button" onClick={() => act('uncordon').catch(setError)}>Uncordon</button>
        <Failure of={error} />
      </>
    );
  return (
    <Dangerous name="Drain" title={'Drain ' + clean(node.id) + '?'} act={() => act('drain')}>
      <p>Its {count(node.instances, 'instance')} move to other nodes, and it gets no new ones until it is uncordoned.</p>
    </Dangerous>
  );
}

export function ClusterPage({ id }: { id: string }) {
  const l = useLive();
  const c = l.get('cluster', id);
  const shown = c !== undefined && may('nodes', c.tenant || '');
  const nodes = useLoaded((s) => get<Page<Node>>('/v1/clusters/' + segment(id) + '/nodes', s), shown ? id : '', refresh);
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
        <>
          <Failure of={nodes.error} />
          {nodes.value && nodes.value.items.length === 0 && <Empty command={'treeline token create --node --cluster ' + id}>No node has joined.</Empty>}
          {nodes.value && nodes.value.items.length > 0 && (
            <Table<Node>
              label="Nodes"
              rows={nodes.value.items}
              id={(n) => n.id}
              columns={[
                { name: 'Name', of: (n) => <T>{n.id}</T> },
                { name: 'State', of: (n) => <State of={n.status} /> },
                { name: 'Heard', of: (n) => <><Age of={n.heard} /> ago</> },
                { name: 'Instances', number: true, of: (n) => n.instances },
                { name: 'Processors', of: (n) => <Bar label="Processors" part={n.allocated.milli_cpu} of={n.capacity.milli_cpu} text={cpus(n.allocated.milli_cpu) + ' of ' + cpus(n.capacity.milli_cpu) + ', ' + n.cpu_used_percent + ' % used'} /> },
                { name: 'Memory', of: (n) => <Bar label="Memory" part={n.allocated.memory_mb} of={n.capacity.memory_mb} text={memory(n.allocated.memory_mb) + ' of ' + memory(n.capacity.memory_mb) + ', ' + n.memory_used_percent + ' % used'} /> },
                { name: 'Runtimes', wide: true, of: (n) => <T>{n.runtimes.join(', ')}</T> },
                { name: 'Version', wide: true, of: (n) => <T>{n.version}</T> },
                { name: '', of: (n) => <Commands node={n} cluster={id} again={nodes.again} /> },
              ]}
            />
          )}
          <DataAge at={nodes.at} />
        </>
      )}
    </>
  );
}
