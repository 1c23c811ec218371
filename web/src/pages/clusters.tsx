import type { Cluster } from '../types';
import { Age, Bar, Empty, Failure, State, T, Table, useLive } from '../parts/basics';
import { FederationMap, Tree } from '../parts/map';
import { to } from '../route';
import { cpus, memory } from '../text';

export function Clusters() {
  const l = useLive();
  const all = l.list('cluster');
  return (
    <>
      <h1>Clusters</h1>
      {!l.loaded ? (
        l.error ? <Failure of={l.error} /> : <p class="faint">Loading…</p>
      ) : all.length === 0 ? (
        <Empty command="treeline token create --cluster munich" docs="/docs/how-to/operator#a-cluster">No cluster has joined.</Empty>
      ) : (
        <>
        <FederationMap clusters={all} />
        <Tree clusters={all} />
        <Table<Cluster>
          label="Clusters"
          rows={all}
          id={(c) => c.id}
          columns={[
            { name: 'Name', of: (c) => <a href={to('cluster', c.id)}><T>{c.id}</T></a> },
            { name: 'State', of: (c) => <State of={c.status} /> },
            { name: 'Report', of: (c) => <><Age of={c.heard} /> old</> },
            { name: 'Nodes', number: true, of: (c) => c.aggregate.nodes },
            { name: 'Instances', number: true, wide: true, of: (c) => c.instances },
            {
              name: 'Processors', wide: true,
              of: (c) => <Bar label="Processors" part={c.aggregate.capacity.milli_cpu - c.aggregate.free.milli_cpu} of={c.aggregate.capacity.milli_cpu} text={cpus(c.aggregate.free.milli_cpu) + ' free'} />,
            },
            {
              name: 'Memory', wide: true,
              of: (c) => <Bar label="Memory" part={c.aggregate.capacity.memory_mb - c.aggregate.free.memory_mb} of={c.aggregate.capacity.memory_mb} text={memory(c.aggregate.free.memory_mb) + ' free'} />,
            },
          ]}
        />
        </>
      )}
    </>
  );
}
