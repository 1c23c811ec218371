import type { Instance } from '../../types';
import { get, Page } from '../../http';
import { DataAge, Empty, Failure, State, T, Table, useLoaded } from '../../parts/basics';
import { to } from '../../route';

export function OwnInstances() {
  const all = useLoaded((s) => get<Page<Instance>>('/v1/instances', s), 'instances', 5000);
  const rows = all.value?.items || [];
  return (
    <>
      <h1>Instances</h1>
      <Failure of={all.error} />
      {all.value && rows.length === 0 && <Empty command="treeline get instances">The root has assigned no instance to this cluster.</Empty>}
      {rows.length > 0 && (
        <Table<Instance>
          label="Instances"
          rows={rows}
          id={(i) => i.id}
          columns={[
            { name: 'Instance', of: (i) => <a href={to('instance', i.id)}><T>{i.id}</T></a> },
            { name: 'State', of: (i) => <State of={i.state} note={i.reason} /> },
            { name: 'Node', of: (i) => <a href={to('node', i.node)}><T>{i.node}</T></a> },
            { name: 'Restarts', number: true, wide: true, of: (i) => i.restarts },
            { name: 'Detail', wide: true, of: (i) => <T>{i.detail}</T> },
          ]}
        />
      )}
      <DataAge at={all.at} />
    </>
  );
}
