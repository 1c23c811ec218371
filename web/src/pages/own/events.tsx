import { DataAge, useLive } from '../../parts/basics';
import { RecordTable } from '../../parts/events';

export function OwnEvents() {
  const l = useLive();
  return (
    <>
      <h1>Events</h1>
      <p class="faint">Who reached instances and changed something through this cluster's own port, and for requests that the root passed on.</p>
      {l.loaded && <RecordTable events={[...l.events].reverse()} />}
      <DataAge at={l.heard} />
    </>
  );
}
