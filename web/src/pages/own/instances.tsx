import type { Instance } from '../../types';
import { DataAge, Empty, State, T, Table, useLive } from '../../parts/basics';
import { to } from '../../route';

export function OwnInstances() {
  const l = useLive();
  const rows = l.list('instance');
  return (
    <>
      <h1>Instances</h1>
      {l.loaded && rows.length === 0 && <Empty command="treeline get instances">The root has assigned no instance to this cluster.</Empty>}
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
      <DataAge at={l.heard} />
    </>
  );
}
