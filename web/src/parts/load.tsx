// What instances use, and what their service scales by, over time.
import type { InstanceUsage, Service, Usage as Measured, UsagesInstanceUsage, UsagesNodeUsage, Why } from '../types';
import { get, segment } from '../http';
import { bytes, cpus } from '../text';
import { DataAge, Failure, Loaded, T, Table, useLoaded } from './basics';
import { History, Spark, useHistory } from './spark';

const refresh = 5000; // ms; a measurement takes a second
const scaleRefresh = 10_000;

type Measure = 'milli_cpu' | 'memory_bytes' | 'in_bytes_per_second' | 'out_bytes_per_second';

const measures: { of: Measure; name: string; text: (n: number) => string }[] = [
  { of: 'milli_cpu', name: 'Processors', text: cpus },
  { of: 'memory_bytes', name: 'Memory', text: bytes },
  { of: 'in_bytes_per_second', name: 'Received', text: (n) => bytes(n) + '/s' },
  { of: 'out_bytes_per_second', name: 'Sent', text: (n) => bytes(n) + '/s' },
];

export interface Usage {
  loaded: Loaded<UsagesInstanceUsage>;
  history: History; // by instance and measure
}

/** The usage of the instances of an application or service, or of an instance; "": of none. */
export function useUsage(under: string): Usage {
  const loaded = useLoaded((s) => get<UsagesInstanceUsage>('/v1/usage/instances?under=' + encodeURIComponent(under), s), under, refresh);
  const history = useHistory(
    loaded.at,
    (loaded.value?.items || []).flatMap((u) => measures.filter((m) => u[m.of] >= 0).map((m): [string, number] => [u.instance + ' ' + m.of, u[m.of]])),
  );
  return { loaded, history };
}

/** Why nothing is measured, or "". */
export function unmeasured(usage: Usage): string {
  const u = usage.loaded.value;
  if (!u || u.items.some((i) => measures.some((m) => i[m.of] >= 0))) return '';
  return u.missing?.[0]?.reason || (u.items.length > 0 ? 'the runtime does not tell' : '');
}

function of(usage: Usage, instance: string): InstanceUsage | undefined {
  return usage.loaded.value?.items.find((u) => u.instance === instance);
}

/** What an instance uses of something, over time. */
export function UsageSpark({ usage, instance, what }: { usage: Usage; instance: string; what: Measure }) {
  const m = measures.find((m) => m.of === what)!;
  const now = of(usage, instance)?.[what] ?? -1;
  if (now < 0) {
    const why = usage.loaded.value?.missing?.find((u) => !u.instance || u.instance === instance)?.reason;
    return usage.loaded.value ? <span class="faint" title={why}>not measured</span> : null;
  }
  return <Spark label={m.name} values={usage.history.get(instance + ' ' + what)} text={m.text(now)} />;
}

/** All that an instance uses. */
export function InstanceLoad({ id }: { id: string }) {
  const usage = useUsage(id);
  const why = unmeasured(usage);
  return (
    <section aria-label="Load">
      <h2>Load</h2>
      <Failure of={usage.loaded.error} />
      {why ? (
        <p class="faint">Not measured: <T>{why}</T></p>
      ) : (
        of(usage, id) && (
          <div class="pairs load">
            {measures.map((m) => [<span key={m.of}>{m.name}</span>, <UsageSpark key={m.of + '-'} usage={usage} instance={id} what={m.of} />])}
          </div>
        )
      )}
      <DataAge at={usage.loaded.at} />
    </section>
  );
}

const halves: { of: 'machine' | 'instances'; name: string }[] = [
  { of: 'machine', name: 'Machine' },
  { of: 'instances', name: 'Its instances' },
];

/** What a node's machine uses, and its instances together. at is the path of the cluster's API. */
export function NodeLoad({ at, node }: { at: string; node: string }) {
  const loaded = useLoaded((s) => get<UsagesNodeUsage>(at + '/usage/nodes?node=' + encodeURIComponent(node), s), at + ' ' + node, refresh);
  const now = loaded.value?.items.find((u) => u.node === node);
  const figures = halves.map(({ of, name }) => ({ of, name, all: now ? measures.filter((m) => now[of][m.of] >= 0).map((m) => ({ ...m, now: now[of][m.of] })) : [] }));
  const history = useHistory(
    loaded.at,
    figures.flatMap((h) => h.all.map((m): [string, number] => [h.of + ' ' + m.of, m.now])),
  );
  const top = (what: keyof Measured, of: string) => (of !== 'machine' || !now ? undefined : what === 'milli_cpu' ? now.capacity.milli_cpu : what === 'memory_bytes' ? now.capacity.memory_mb * 2 ** 20 : undefined);
  return (
    <section aria-label="Load">
      <h2>Load</h2>
      <Failure of={loaded.error} />
      {loaded.value && !now && <p class="faint">Not measured: <T>{loaded.value.missing?.[0]?.reason || 'the node does not answer'}</T></p>}
      <div class="halves">
        {figures.map(
          (h) =>
            h.all.length > 0 && (
              <div key={h.of}>
                <h3>{h.name}</h3>
                <div class="pairs load">
                  {h.all.map((m) => [<span key={m.of}>{m.name}</span>, <Spark key={m.of + '-'} label={h.name + ': ' + m.name} values={history.get(h.of + ' ' + m.of)} top={top(m.of, h.of)} text={m.text(m.now)} />])}
                </div>
              </div>
            ),
        )}
      </div>
      <DataAge at={loaded.at} />
    </section>
  );
}

interface Goal {
  key: string;
  cluster: string;
  name: string;
  unit: string;
  target: number;
  value?: number;
  wants?: number;
}

function number(n: number): string {
  return n.toLocaleString('en', { maximumFractionDigits: 1 });
}

/** What a service scales by, as each of its clusters measures it: requests, connections, processors. instance is one of its. */
export function ScaleLoad({ service, instance }: { service: Service; instance: string }) {
  const why = useLoaded((s) => get<Why>('/v1/instances/' + segment(instance) + '/why', s), service.spec.scale && instance ? instance : '', scaleRefresh);
  const now = (why.value?.clusters || []).filter((c) => c.answer.scale);
  const goals = now.flatMap((c) =>
    (c.answer.scale!.metrics || []).map((m): Goal => ({ key: c.cluster + ' ' + m.name, cluster: c.cluster, name: m.name, unit: m.unit || '', target: m.target, value: m.value, wants: m.wants })),
  );
  const history = useHistory(why.at, goals.filter((g) => g.value !== undefined).map((g) => [g.key, g.value!]));
  if (!service.spec.scale) return null;
  return (
    <section aria-label="Scaling">
      <h2>Scaling</h2>
      <p class="faint">From {service.spec.scale.min ?? 1} to {service.spec.scale.max} instances.</p>
      <Failure of={why.error} />
      {goals.length > 0 && (
        <Table<Goal>
          label="What it scales by"
          rows={goals}
          id={(g) => g.key}
          columns={[
            { name: 'Mean of an instance', of: (g) => <T>{g.name}</T> },
            {
              name: 'Now',
              of: (g) =>
                g.value === undefined ? <span class="faint">not known</span> : <Spark label={g.name} values={history.get(g.key)} top={g.target} text={number(g.value) + (g.unit && ' ' + g.unit)} />,
            },
            { name: 'Wanted', number: true, of: (g) => <>{number(g.target)} <T>{g.unit}</T></> },
            { name: 'Instances for it', number: true, wide: true, of: (g) => g.wants },
            { name: 'Cluster', wide: true, of: (g) => <T>{g.cluster}</T> },
          ]}
        />
      )}
      {now.map((c) =>
        [c.answer.scale!.why, c.answer.scale!.fault, c.answer.scale!.waits].filter((t) => t).map((t, n) => <p key={c.cluster + n} class="faint"><T>{c.cluster + ': ' + t}</T></p>),
      )}
      {instance && <DataAge at={why.at} />}
    </section>
  );
}
