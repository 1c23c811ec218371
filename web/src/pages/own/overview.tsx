import type { Status } from '../../types';
import { get } from '../../http';
import { Bar, DataAge, Failure, State, T, useLoaded } from '../../parts/basics';
import { Nodes } from '../../parts/nodes';
import { cpus, memory } from '../../text';

export function OwnOverview() {
  const status = useLoaded((s) => get<Status>('/v1/status', s), 'status', 5000);
  const s = status.value;
  return (
    <>
      <div class="title">
        <h1>{s ? <T>{s.id}</T> : 'Cluster'}</h1>
        {s && (s.root_connected ? <State of="ready" note="connected to the root" /> : <State of="offline" note="works on without the root" />)}
      </div>
      <Failure of={status.error} />
      {s && (
        <dl class="facts">
          <dt>Nodes</dt>
          <dd>{s.nodes}</dd>
          <dt>Instances</dt>
          <dd>{s.instances}</dd>
          <dt>Processors</dt>
          <dd><Bar label="Processors" part={s.aggregate.capacity.milli_cpu - s.aggregate.free.milli_cpu} of={s.aggregate.capacity.milli_cpu} text={cpus(s.aggregate.free.milli_cpu) + ' of ' + cpus(s.aggregate.capacity.milli_cpu) + ' free'} /></dd>
          <dt>Memory</dt>
          <dd><Bar label="Memory" part={s.aggregate.capacity.memory_mb - s.aggregate.free.memory_mb} of={s.aggregate.capacity.memory_mb} text={memory(s.aggregate.free.memory_mb) + ' of ' + memory(s.aggregate.capacity.memory_mb) + ' free'} /></dd>
        </dl>
      )}
      <DataAge at={status.at} />
      <h2>Nodes</h2>
      <Nodes at="/v1/nodes" join="treeline token create --node --cluster NAME" />
    </>
  );
}
