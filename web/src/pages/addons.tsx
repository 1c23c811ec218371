import type { Addon } from '../types';
import { list } from '../http';
import { Age, DataAge, Empty, Failure, T, Table, useLoaded } from '../parts/basics';
import { to } from '../route';
import { count, short } from '../text';

const refresh = 20_000; // ms; each change has an event

export function Addons() {
  const all = useLoaded(() => list<Addon>('/v1/addons'), 'addons', refresh, 'addon');
  const rows = all.value?.items || [];
  return (
    <>
      <h1>Addons</h1>
      <p class="faint">Packages of an application, custom kinds, resources and webhooks. <code>treeline addon</code> installs, upgrades and removes them.</p>
      <Failure of={all.error} />
      {all.value && rows.length === 0 && <Empty command="treeline addon install PACKAGE" docs="/docs/how-to/addons">No addon is installed.</Empty>}
      {rows.length > 0 && (
        <Table<Addon>
          label="Addons"
          rows={rows}
          id={(a) => a.id}
          columns={[
            { name: 'Addon', of: (a) => <><T>{a.id}</T>{a.description && <div class="faint"><T>{a.description}</T></div>}</> },
            { name: 'Version', of: (a) => <T>{a.version}</T> },
            {
              name: 'Contents', of: (a) => (
                <>
                  {a.app && <div><a href={to('app', a.app)}><T>{short(a.app)}</T></a></div>}
                  {(a.kinds || []).map((k) => <div key={k}>kind <a href={to('kind', k)}><T>{short(k)}</T></a></div>)}
                  {(a.resources || []).length > 0 && <div>{count(a.resources!.length, 'resource')}</div>}
                  {(a.webhooks || []).map((w) => <div key={w}><a href={to('webhook', w)}>webhook</a></div>)}
                </>
              ),
            },
            { name: 'Source', wide: true, of: (a) => <><T>{a.source}</T>{a.digest && <div class="faint"><code>{a.digest.slice(0, 19)}</code></div>}</> },
            { name: 'Changed', of: (a) => <Age of={a.changed} /> },
            { name: 'By', wide: true, of: (a) => <T>{a.by}</T> },
          ]}
        />
      )}
      <DataAge at={all.at} />
    </>
  );
}
