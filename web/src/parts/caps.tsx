// Limits of what a node or a cluster counts for, whatever it reports.
import { useState } from 'preact/hooks';
import type { Caps } from '../types';
import { cpus, memory } from '../text';
import { Failure } from './basics';

/** Limits in words. */
export function capsText(c: Caps | undefined): string {
  if (!c) return '';
  const all = [
    c.nodes ? c.nodes + ' nodes' : '',
    c.milli_cpu ? cpus(c.milli_cpu) + ' processors' : '',
    c.memory_mb ? memory(c.memory_mb) + ' of memory' : '',
    c.storage_mb ? memory(c.storage_mb) + ' of storage' : '',
    ...Object.entries(c.devices || {}).map(([kind, n]) => n + ' ' + kind),
    c.no_privileged ? 'no privileged workloads' : '',
  ];
  return all.filter((t) => t).join(', ');
}

/** A form for limits. nodes: the number of nodes can be limited, too. Limits of devices stay as they are. */
export function CapsForm({ of, nodes, save }: { of: Caps | undefined; nodes?: boolean; save: (c: Caps) => Promise<unknown> }) {
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const c = of || {};
  const saved = capsText(c);
  return (
    <form
      key={saved}
      class="fields"
      onSubmit={async (e) => {
        e.preventDefault();
        const f = new FormData(e.currentTarget);
        const n = (name: string) => Number(f.get(name)) || 0;
        setBusy(true);
        setError(undefined);
        try {
          await save({
            ...(c.devices ? { devices: c.devices } : {}),
            milli_cpu: Math.round(1000 * n('cap-vcpus')), memory_mb: n('cap-memory'), storage_mb: n('cap-storage'),
            ...(nodes ? { nodes: n('cap-nodes') } : {}),
            no_privileged: f.get('cap-unprivileged') !== null,
          });
        } catch (err) {
          setError(err);
        }
        setBusy(false);
      }}
    >
      {nodes && <label>Nodes <input name="cap-nodes" type="number" min="0" defaultValue={String(c.nodes || 0)} /></label>}
      <label>Processors <input name="cap-vcpus" type="number" min="0" step="any" defaultValue={String((c.milli_cpu || 0) / 1000)} /></label>
      <label>Memory, MiB <input name="cap-memory" type="number" min="0" defaultValue={String(c.memory_mb || 0)} /></label>
      <label>Storage, MiB <input name="cap-storage" type="number" min="0" defaultValue={String(c.storage_mb || 0)} /></label>
      <label class="check"><input name="cap-unprivileged" type="checkbox" defaultChecked={!!c.no_privileged} /> No privileged workloads</label>
      <button type="submit" disabled={busy}>Limit</button>
      <p class="faint broad">0 is no limit. {saved ? 'Now: ' + saved + '.' : 'There is none now.'}</p>
      <Failure of={error} />
    </form>
  );
}
