import type { Explanation } from '../../types';
import { get, segment } from '../../http';
import { DataAge, Empty, Failure, State, T, useLive, useLoaded } from '../../parts/basics';
import { Log, Shell } from '../../parts/console';
import { Funnel } from '../../parts/funnel';
import { to } from '../../route';

export function OwnInstance({ id }: { id: string }) {
  const l = useLive();
  const i = l.get('instance', id);
  const why = useLoaded((s) => get<Explanation>('/v1/instances/' + segment(id) + '/why', s), i ? id + ' ' + i.epoch + ' ' + i.state : '');
  return (
    <>
      <p class="path"><a href={to('instances')}>Instances</a></p>
      <div class="title">
        <h1><T>{id}</T></h1>
        {i && <State of={i.state} note={i.reason} />}
      </div>
      {l.loaded && !i && <Empty command="treeline get instances">This cluster does not have the instance.</Empty>}
      {i && (
        <dl class="facts">
          {i.detail && <><dt>Detail</dt><dd><T>{i.detail}</T></dd></>}
          <dt>Node</dt>
          <dd><a href={to('node', i.node)}><T>{i.node}</T></a></dd>
          <dt>Restarts</dt>
          <dd>{i.restarts}</dd>
        </dl>
      )}
      <DataAge at={l.heard} />
      <section aria-label="Placement">
        <h2>Places now</h2>
        {why.value && <div class="funnels"><div><Funnel of={why.value} what="node" label="Placement in this cluster" /></div></div>}
        <Failure of={why.error} />
      </section>
      {i && i.state === 'running' && (
        <>
          <section aria-label="Output of the instance">
            <h2>Output</h2>
            <Log id={id} restarts={i.restarts} />
          </section>
          <section aria-label="Terminal">
            <h2>Terminal</h2>
            <Shell id={id} />
          </section>
        </>
      )}
    </>
  );
}
