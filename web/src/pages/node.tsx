import { useState } from 'preact/hooks';
import type { Instance, Node, Remaining } from '../types';
import { get, Page, post, segment, send, tier } from '../http';
import { may } from '../may';
import { Age, Bar, DataAge, Dangerous, Empty, Failure, State, T, Table, useLive, useLoaded } from '../parts/basics';
import { CapsForm } from '../parts/caps';
import { NodeLoad } from '../parts/load';
import { Commands, Heard, refresh, useNodes } from '../parts/nodes';
import { to } from '../route';
import { clean, cpus, memory } from '../text';

function Facts({ of: n }: { of: Node }) {
  const devices = (n.devices || []).map((d) => d.id + (d.model ? ' (' + d.model + ')' : ''));
  const labels = Object.entries(n.labels || {}).map(([k, v]) => k + '=' + v);
  const faults = [n.runtime_error, n.network_error, n.purge_error].filter((t): t is string => !!t);
  return (
    <dl class="facts">
      <dt>Heard</dt>
      <dd><Heard of={n} />; joined <Age of={n.joined} /> ago</dd>
      <dt>Machine</dt>
      <dd><T>{[n.hostname, n.os, n.arch].filter((t) => t).join(', ')}</T>{n.version && <>, node engine <T>{n.version}</T></>}</dd>
      <dt>Runs</dt>
      <dd><T>{n.runtimes.join(', ') || 'nothing'}</T>{n.privileged && <>, also privileged</>}</dd>
      <dt>Network</dt>
      <dd><T>{n.network || 'none'}</T>{n.subnet && <>, subnet <code><T>{n.subnet}</T></code></>}{n.address && <>, reached at <code><T>{n.address}</T></code></>}</dd>
      <dt>Processors</dt>
      <dd><Bar label="Processors" part={n.allocated.milli_cpu} of={n.capacity.milli_cpu} text={cpus(n.allocated.milli_cpu) + ' of ' + cpus(n.capacity.milli_cpu) + ' reserved'} /></dd>
      <dt>Memory</dt>
      <dd><Bar label="Memory" part={n.allocated.memory_mb} of={n.capacity.memory_mb} text={memory(n.allocated.memory_mb) + ' of ' + memory(n.capacity.memory_mb) + ' reserved'} /></dd>
      {devices.length > 0 && <><dt>Devices</dt><dd><T>{devices.join(', ')}</T></dd></>}
      {labels.length > 0 && <><dt>Labels</dt><dd><T>{labels.join(', ')}</T></dd></>}
      {(n.areas || []).length > 0 && <><dt>Areas</dt><dd><T>{n.areas!.join(', ')}</T></dd></>}
      {(n.capped || []).length > 0 && <><dt>Capped</dt><dd class="stale"><T>{n.capped!.map((c) => c.what + ': reports ' + c.claims + ', counts ' + c.counts).join('; ')}</T></dd></>}
      {faults.length > 0 && <><dt>Faults</dt><dd class="stale"><T>{faults.join('; ')}</T></dd></>}
    </dl>
  );
}

/** A node for its operator: what it is, uses and runs, and what can be done with it. cluster is "" at the cluster itself. */
export function NodePage({ cluster, id }: { cluster: string; id: string }) {
  const own = tier === 'cluster';
  const base = own ? '/v1' : '/v1/clusters/' + segment(cluster);
  const at = base + '/nodes';
  const path = at + '/' + segment(id);
  const l = useLive();
  // The list, because a node that was removed is no error.
  const nodes = useNodes(at);
  const n = (nodes.value || []).find((n) => n.id === id);
  const [leaving, setLeaving] = useState(false); // its load is no longer asked for: it may be gone at any time
  const read = useLoaded(async (s) => (await get<Page<Instance>>(base + '/instances', s)).items || [], n && !own ? path : '', refresh);
  const all = own ? { value: l.loaded ? l.list('instance') : undefined, at: l.heard, error: undefined } : read;
  const here = (all.value || []).filter((i) => i.node === id);
  return (
    <>
      <p class="path">
        {own ? <a href={to('')}>Overview</a> : <><a href={to('clusters')}>Clusters</a> ▸ <a href={to('cluster', cluster)}><T>{cluster}</T></a></>}
      </p>
      <div class="title">
        <h1><T>{id}</T></h1>
        {n && <State of={n.purging ? 'purging' : n.status} note={n.status === 'draining' && n.instances === 0 ? 'no instance is left' : undefined} />}
        {n && <span class="buttons">
          <Commands node={n} at={at} again={nodes.again} all />{' '}
          <Dangerous
            name="Remove" title={'Remove ' + clean(id) + '?'}
            act={async (f) => {
              setLeaving(true);
              try {
                await (f.get('purge') ? post(path + '/purge') : send('DELETE', path));
              } catch (e) {
                setLeaving(false);
                throw e;
              }
              nodes.again();
            }}
          >
            <p>Its certificates are refused from now on, and its instances are placed elsewhere. Drain it first, so that they move without a pause.</p>
            <label><input type="checkbox" name="purge" defaultChecked={n.status !== 'silent'} /> Have it delete its workloads, images, logs and keys first</label>
            <p class="faint">Then it is removed when it has confirmed that.</p>
          </Dangerous>
        </span>}
      </div>
      <Failure of={nodes.error} />
      {nodes.value && !n && <Empty command={'treeline get nodes' + (own ? '' : ' --cluster ' + cluster)}>No such node is in the cluster, or it has been removed.</Empty>}
      {n && <Facts of={n} />}
      <DataAge at={nodes.at} />
      {n && (n.remaining || []).length > 0 && (
        <section aria-label="Remaining">
          <h2>Still here while it is drained</h2>
          <Table<Remaining>
            label="Instances that remain"
            rows={n.remaining!}
            id={(r) => r.instance}
            columns={[
              { name: 'Instance', of: (r) => <T>{r.instance}</T> },
              { name: 'State', of: (r) => <>{r.state && <State of={r.state} />} {r.stuck && <b class="bad">stuck</b>}</> },
              { name: 'Why', of: (r) => <span class="detail"><T>{r.why}</T></span> },
            ]}
          />
        </section>
      )}
      {n && (
        <section aria-label="Instances">
          <h2>Runs here</h2>
          <Failure of={all.error} />
          {all.value && here.length === 0 && <Empty command={'treeline describe node ' + (own ? '' : cluster + '/') + id}>No instance is on this node.</Empty>}
          {here.length > 0 && (
            <Table<Instance>
              label="Instances on the node"
              rows={here}
              id={(i) => i.id}
              columns={[
                { name: 'Instance', of: (i) => (own || may('apps') ? <a href={to('instance', i.id)}><T>{i.id}</T></a> : <T>{i.id}</T>) },
                { name: 'State', of: (i) => <State of={i.leaving ? 'stopping' : i.state} note={i.reason} /> },
                { name: 'Restarts', number: true, wide: true, of: (i) => i.restarts },
                { name: 'Detail', wide: true, of: (i) => <T>{i.detail}</T> },
              ]}
            />
          )}
          <DataAge at={all.at} />
        </section>
      )}
      {n && !leaving && !n.purging && n.status !== 'joining' && n.status !== 'silent' && <NodeLoad at={base} node={id} />}
      {n && (
        <section aria-label="Limits">
          <h2>What it counts for at most</h2>
          <CapsForm of={n.caps} save={async (c) => (await send('PUT', path + '/caps', { body: c }), nodes.again())} />
        </section>
      )}
    </>
  );
}
