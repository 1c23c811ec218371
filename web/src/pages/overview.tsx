import { may } from '../may';
import { Empty, Failure, T, useLive } from '../parts/basics';
import { Bar } from '../parts/basics';
import { EventTable } from '../parts/events';
import { to } from '../route';
import { count, cpus, memory, short } from '../text';

export function Overview() {
  const l = useLive();
  const apps = l.list('app');
  const clusters = l.list('cluster');
  const services = l.list('service');
  const waiting = services.filter((s) => s.running + (s.completed || 0) + (s.dormant || 0) < s.replicas);
  const total = clusters.reduce(
    (t, c) => ({
      nodes: t.nodes + c.aggregate.nodes,
      cpu: t.cpu + c.aggregate.capacity.milli_cpu,
      freeCPU: t.freeCPU + c.aggregate.free.milli_cpu,
      mem: t.mem + c.aggregate.capacity.memory_mb,
      freeMem: t.freeMem + c.aggregate.free.memory_mb,
    }),
    { nodes: 0, cpu: 0, freeCPU: 0, mem: 0, freeMem: 0 },
  );
  const sum = (of: 'running' | 'wanted') => apps.reduce((n, a) => n + a[of], 0);
  if (!l.loaded) return l.error ? <Failure of={l.error} /> : <p class="faint">Loading…</p>;
  return (
    <>
      <h1>Overview</h1>
      <div class="tiles">
        {may('apps') && (
          <>
            <a class="tile" href={to('apps')}>
              <span class="figure">{apps.length}</span> {apps.length === 1 ? 'application' : 'applications'}
            </a>
            <a class="tile" href={to('apps')}>
              <span class="figure">
                {sum('running')}
                <span class="faint"> / {sum('wanted')}</span>
              </span>{' '}
              instances run
            </a>
          </>
        )}
        <a class="tile" href={to('clusters')}>
          <span class="figure">
            {clusters.filter((c) => c.status === 'ready').length}
            <span class="faint"> / {clusters.length}</span>
          </span>{' '}
          clusters ready
        </a>
        <a class="tile" href={to('clusters')}>
          <span class="figure">{total.nodes}</span> {total.nodes === 1 ? 'node' : 'nodes'}
        </a>
      </div>
      {clusters.length > 0 && (
        <section aria-label="Capacity">
          <h2>Capacity</h2>
          <div class="pairs">
            <span>Processors</span>
            <Bar label="Processors" part={total.cpu - total.freeCPU} of={total.cpu} text={cpus(total.cpu - total.freeCPU) + ' of ' + cpus(total.cpu)} />
            <span>Memory</span>
            <Bar label="Memory" part={total.mem - total.freeMem} of={total.mem} text={memory(total.mem - total.freeMem) + ' of ' + memory(total.mem)} />
          </div>
        </section>
      )}
      {clusters.length === 0 && (
        <Empty command="treeline token create --cluster munich" docs="/docs/how-to/operator#a-cluster">No cluster has joined. This command makes a token, and prints the line that a cluster joins with.</Empty>
      )}
      {clusters.length > 0 && apps.length === 0 && may('apps') && <Empty command="treeline apply -f sla.yaml" docs="/docs/how-to/developer">No application is deployed. <a href={to('deploy')}>Deploy one</a>, or:</Empty>}
      {waiting.length > 0 && (
        <section>
          <h2>Needs attention</h2>
          <ul class="plain">
            {waiting.slice(0, 20).map((s) => (
              <li key={s.id}>
                <a href={to('service', s.id)}>
                  <T>{short(s.id)}</T>
                </a>
                : {count(s.running, 'instance')} of {s.replicas} {s.running === 1 ? 'runs' : 'run'}
                {s.failed ? ', ' + s.failed + ' failed' : ''}
              </li>
            ))}
          </ul>
        </section>
      )}
      <section>
        <h2>Newest events</h2>
        <EventTable events={l.events.slice(-12).reverse()} />
      </section>
    </>
  );
}
