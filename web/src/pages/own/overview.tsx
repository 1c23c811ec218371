import type { Node } from '../../types';
import { Bar, DataAge, State, T, useLive } from '../../parts/basics';
import { Nodes } from '../../parts/nodes';
import { cpus, memory } from '../../text';

export function OwnOverview() {
  const l = useLive();
  const s = l.status;
  const nodes = l.list('node');
  const heard = nodes.filter((n) => n.status !== 'silent');
  const sum = (of: (n: Node) => number) => heard.reduce((t, n) => t + of(n), 0);
  const cpu = sum((n) => n.capacity.milli_cpu);
  const ram = sum((n) => n.capacity.memory_mb);
  const freeCPU = cpu - sum((n) => n.allocated.milli_cpu);
  const freeRAM = ram - sum((n) => n.allocated.memory_mb);
  return (
    <>
      <div class="title">
        <h1>{s ? <T>{s.id}</T> : 'Cluster'}</h1>
        {s && (s.root_connected ? <State of="ready" note="connected to the root" /> : <State of="offline" note="works on without the root" />)}
      </div>
      {s && (
        <dl class="facts">
          <dt>Nodes</dt>
          <dd>{nodes.length}</dd>
          <dt>Instances</dt>
          <dd>{l.list('instance').length}</dd>
          <dt>Processors</dt>
          <dd><Bar label="Processors" part={cpu - freeCPU} of={cpu} text={cpus(freeCPU) + ' of ' + cpus(cpu) + ' free'} /></dd>
          <dt>Memory</dt>
          <dd><Bar label="Memory" part={ram - freeRAM} of={ram} text={memory(freeRAM) + ' of ' + memory(ram) + ' free'} /></dd>
        </dl>
      )}
      <DataAge at={l.heard} />
      <h2>Nodes</h2>
      <Nodes at="/v1/nodes" join="treeline token create --node --cluster NAME" />
    </>
  );
}
