// The volumes that outlive their instances, and the snapshots that drivers keep.
import type { VolumeSnapshot, VolumeStatus } from '../types';
import { list, segment, send } from '../http';
import { may } from '../may';
import { Age, Command, Dangerous, DataAge, Empty, Failure, State, T, Table, useLoaded } from '../parts/basics';
import { to } from '../route';
import { clean, memory } from '../text';

const refresh = 20_000; // ms; each change has an event: a volume is in use while an instance or an SLA has it

/** The instance or service that a volume belongs to. */
function Owner({ id }: { id: string }) {
  const owner = id.slice(0, id.lastIndexOf(':'));
  return <a href={to(owner.includes('#') ? 'instance' : 'service', owner)}><T>{owner}</T></a>;
}

/** How to copy a volume, which the browser cannot do. */
function Snapshot({ of: v }: { of: VolumeStatus }) {
  return (
    <Dangerous name="Snapshot" title={'Snapshot of ' + clean(v.id)} plain act={async () => undefined}>
      <p>{v.csi_driver ? 'The driver keeps it beside the volume:' : 'It is written to a file of your machine, or to an S3-compatible server:'}</p>
      <Command text={"treeline snapshot volume '" + v.id + "' " + (v.csi_driver ? '--name monday' : '--to data.snapshot')} />
      <p><a href="/docs/how-to/volumes">Read how</a></p>
    </Dangerous>
  );
}

export function Volumes() {
  const all = useLoaded(async () => {
    const [volumes, snapshots] = await Promise.all([list<VolumeStatus>('/v1/volumes'), list<VolumeSnapshot>('/v1/snapshots')]);
    return { volumes: volumes.items, snapshots: snapshots.items };
  }, 'volumes', refresh, 'volume instance app');
  const { volumes = [], snapshots = [] } = all.value || {};
  return (
    <>
      <h1>Volumes</h1>
      <p class="faint">Those that outlive their instances. Others begin empty with each placement.</p>
      <Failure of={all.error} />
      {all.value && volumes.length === 0 && <Empty command="treeline get volumes" docs="/docs/how-to/volumes">No volume exists. A service whose SLA has <code>volumes</code> makes them when it is placed.</Empty>}
      {volumes.length > 0 && (
        <Table<VolumeStatus>
          label="Volumes"
          rows={volumes}
          id={(v) => v.id}
          columns={[
            { name: 'Volume', of: (v) => <T>{v.id.slice(v.id.lastIndexOf(':') + 1)}</T> },
            { name: 'Of', of: (v) => <Owner id={v.id} /> },
            { name: 'State', of: (v) => (v.in_use ? <State of="ready" note="in use" /> : 'not in use') },
            { name: 'Size', number: true, of: (v) => memory(v.size_mb) },
            { name: 'Cluster', of: (v) => <a href={to('cluster', v.cluster)}><T>{v.cluster}</T></a> },
            { name: 'Driver', wide: true, of: (v) => <><T>{v.csi_driver || 'local'}</T>{v.access_mode && <span class="faint"> <T>{v.access_mode.replace(/_/g, ' ')}</T></span>}</> },
            { name: 'Age', wide: true, of: (v) => <Age of={v.created} /> },
            {
              name: '', of: (v) => may('apps', v.tenant) && (
                <span class="buttons">
                  <Snapshot of={v} />
                  {!v.in_use && (
                    <Dangerous name="Delete" title={'Delete ' + clean(v.id) + '?'} act={async () => (await send('DELETE', '/v1/volumes/' + segment(v.id), { headers: { 'If-Match': '*' } }), all.again())}>
                      <p>It deletes the volume and its data at once. Nothing brings it back except a snapshot.</p>
                    </Dangerous>
                  )}
                </span>
              ),
            },
          ]}
        />
      )}
      {snapshots.length > 0 && (
        <>
          <h2>Snapshots by drivers</h2>
          <Table<VolumeSnapshot>
            label="Snapshots"
            rows={snapshots}
            id={(s) => s.id}
            columns={[
              { name: 'Snapshot', of: (s) => <T>{s.id}</T> },
              { name: 'State', of: (s) => <State of={s.ready ? 'ready' : 'taking'} /> },
              { name: 'Size', number: true, of: (s) => memory(s.size_mb) },
              { name: 'Cluster', of: (s) => <T>{s.cluster}</T> },
              { name: 'Age', wide: true, of: (s) => <Age of={s.created} /> },
              {
                name: '', of: (s) => may('apps', s.tenant) && (
                  <Dangerous name="Delete" title={'Delete ' + clean(s.id) + '?'} act={async () => (await send('DELETE', '/v1/snapshots/' + segment(s.id), { headers: { 'If-Match': '*' } }), all.again())}>
                    <p>The driver deletes it. Volumes that were created from it stay.</p>
                  </Dangerous>
                ),
              },
            ]}
          />
        </>
      )}
      <DataAge at={all.at} />
    </>
  );
}
