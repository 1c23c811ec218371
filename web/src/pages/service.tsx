import { useEffect, useState } from 'preact/hooks';
import type { Instance, Service } from '../types';
import { segment, send } from '../http';
import { Age, Empty, Failure, State, T, Table, useLive } from '../parts/basics';
import { ScaleLoad, unmeasured, UsageSpark, useUsage } from '../parts/load';
import { live } from '../live';
import { to } from '../route';
import { cpus, memory, short } from '../text';
import { standing } from './applications';

function Scale({ service }: { service: Service }) {
  const [want, set] = useState<number | undefined>();
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const submit = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await send('PUT', '/v1/services/' + segment(service.id) + '/scale', { body: { replicas: want ?? service.replicas }, headers: { 'If-Match': '*' } });
      set(undefined);
    } catch (err) {
      setError(err);
    }
    setBusy(false);
  };
  return (
    <form class="scale" onSubmit={submit}>
      <label>
        Replicas{' '}
        <input type="number" name="replicas" min={0} max={10000} value={want ?? service.replicas} onInput={(e) => set(e.currentTarget.valueAsNumber)} />
      </label>
      <button type="submit" disabled={busy || want === undefined || isNaN(want) || want === service.replicas}>
        Scale
      </button>
      <Failure of={error} />
    </form>
  );
}

export function ServicePage({ id }: { id: string }) {
  const l = useLive();
  useEffect(() => live.watch('instance', id), [id]);
  const s = l.get('service', id);
  const instances = l.list('instance').filter((i) => i.service === id);
  const usage = useUsage(instances.some((i) => i.state === 'running') ? id : '');
  const why = unmeasured(usage);
  const measured = !!usage.loaded.value && !why;
  if (!s)
    return (
      <>
        <h1><T>{short(id)}</T></h1>
        {l.loaded ? <Empty command="treeline get services">There is no such service.</Empty> : <p class="faint">Loading…</p>}
      </>
    );
  const a = s.addresses || {};
  return (
    <>
      <p class="path">
        <a href={to('apps')}>Applications</a> ▸ <a href={to('app', s.app)}><T>{short(s.app)}</T></a>
      </p>
      <div class="title">
        <h1><T>{s.spec.microservice_name}</T></h1>
        <State of={standing({ ...s, wanted: s.replicas })} />
        {s.rollout && <span class="faint">roll-out: <T>{s.rollout}</T></span>}
      </div>
      <Scale service={s} />
      <dl class="facts">
        <dt>Runs</dt>
        <dd><T>{s.spec.code}</T> as <T>{s.spec.virtualization}</T></dd>
        <dt>Needs</dt>
        <dd>{cpus((s.spec.vcpus || 0) * 1000)} processors, {memory(s.spec.memory || 0)}</dd>
        {(a.rr || a.closest) && (
          <>
            <dt>Addresses</dt>
            <dd>
              {a.rr && <span>any <code><T>{a.rr}</T></code></span>} {a.closest && <span>closest <code><T>{a.closest}</T></code></span>}
            </dd>
          </>
        )}
        {(s.spec.constraints || []).length > 0 && (
          <>
            <dt>Constraints</dt>
            <dd><T>{s.spec.constraints!.map((c) => c.type).join(', ')}</T></dd>
          </>
        )}
      </dl>
      <h2>Instances</h2>
      {!l.has('instance', id) ? (
        <p class="faint">Loading…</p>
      ) : instances.length === 0 ? (
        <Empty command={'treeline scale ' + short(id) + ' 1'}>No instance is wanted.</Empty>
      ) : (
        <Table<Instance>
          label="Instances"
          rows={instances}
          id={(i) => i.id}
          columns={[
            { name: 'Instance', of: (i) => <a href={to('instance', i.id)}>#{i.number}</a> },
            { name: 'State', of: (i) => <State of={i.leaving ? 'stopping' : i.state} note={i.reason} /> },
            { name: 'For', of: (i) => <Age of={i.since} /> },
            ...(measured
              ? [
                  { name: 'Processors', of: (i: Instance) => i.state === 'running' && <UsageSpark usage={usage} instance={i.id} what="milli_cpu" /> },
                  { name: 'Memory', wide: true, of: (i: Instance) => i.state === 'running' && <UsageSpark usage={usage} instance={i.id} what="memory_bytes" /> },
                ]
              : []),
            { name: 'Cluster', of: (i) => i.cluster && <a href={to('cluster', i.cluster)}><T>{i.cluster}</T></a> },
            ...(instances.some((i) => i.node) ? [{ name: 'Node', wide: true, of: (i: Instance) => i.node && <a href={to('node', i.cluster, i.node)}><T>{i.node}</T></a> }] : []),
            { name: 'Address', wide: true, of: (i) => i.address && <code><T>{i.address}</T></code> },
            { name: 'Restarts', number: true, wide: true, of: (i) => i.restarts },
          ]}
        />
      )}
      <Failure of={usage.loaded.error} />
      {why && <p class="faint">Load not measured: <T>{why}</T></p>}
      <ScaleLoad key={id} service={s} instance={instances.find((i) => i.cluster)?.id || ''} />
    </>
  );
}
