// The nodes of a cluster, for its operators.
import { useState } from 'preact/hooks';
import type { Node } from '../types';
import { get, Page, post, segment, tier } from '../http';
import { to } from '../route';
import { clean, count, cpus, memory } from '../text';
import { Age, Bar, DataAge, Dangerous, Empty, Failure, Loaded, State, T, Table, useLive, useLoaded } from './basics';
import { History, Spark, useHistory } from './spark';

export const refresh = 5000; // ms; the root has no stream of clusters' nodes

/** The nodes at a path of the API; "": none. A cluster's own come by its stream. */
export function useNodes(at: string): Loaded<Node[]> {
  const l = useLive();
  const read = useLoaded(async (s) => (await get<Page<Node>>(at, s)).items || [], tier === 'cluster' ? '' : at, refresh);
  return tier === 'cluster' ? { value: l.loaded ? l.list('node') : undefined, at: l.heard, again: () => undefined } : read;
}

/** When the node was heard. A cluster's stream has no heartbeats: a node that is not silent is heard in time. */
export function Heard({ of: n }: { of: Node }) {
  return tier === 'cluster' && n.status !== 'silent' && n.status !== 'joining' ? <>in time</> : <><Age of={n.heard} /> ago</>;
}

/** The URL of a node's page. */
export function nodeURL(n: { cluster?: string; id: string }): string {
  return tier === 'cluster' ? to('node', n.id) : to('node', n.cluster, n.id);
}

/** What an operator does with a node before maintenance, and after it. at is the path of the nodes; all offers what a table has no room for. */
export function Commands({ node, at, again, all }: { node: Node; at: string; again: () => void; all?: boolean }) {
  const [error, setError] = useState<unknown>();
  const act = async (what: string) => {
    await post(at + '/' + segment(node.id) + '/' + what);
    again();
  };
  const now = (what: string) => {
    setError(undefined);
    act(what).catch(setError);
  };
  if (node.status === 'joining' || node.status === 'silent') return null;
  const ready = node.status === 'ready';
  return (
    <>
      {ready && all && <button type="button" onClick={() => now('cordon')}>Cordon</button>}
      {!ready && <button type="button" onClick={() => now('uncordon')}>Uncordon</button>}{' '}
      {(ready || (all && node.instances > 0)) && (
        <Dangerous name="Drain" title={'Drain ' + clean(node.id) + '?'} act={(f) => act(f.get('force') ? 'force-drain' : 'drain')}>
          <p>Its {count(node.instances, 'instance')} move to other nodes, and it gets no new ones until it is uncordoned.</p>
          <label><input type="checkbox" name="force" /> Stop instances that fit nowhere else</label>
        </Dangerous>
      )}
      <Failure of={error} />
    </>
  );
}

/** The share of each node's processors in use, over time. */
export function useLoads(nodes: Loaded<Node[]>): History {
  return useHistory(nodes.at, (nodes.value || []).map((n) => [n.id, n.cpu_used_percent]));
}

/** The table of the nodes at a path of the API; "": none. join is the command that makes a token for another node. */
export function Nodes({ at, join }: { at: string; join: string }) {
  const nodes = useNodes(at);
  const all = nodes.value || [];
  const loads = useLoads(nodes);
  return (
    <>
      <Failure of={nodes.error} />
      {nodes.value && all.length === 0 && <Empty command={join}>No node has joined.</Empty>}
      {all.length > 0 && (
        <Table<Node>
          label="Nodes"
          rows={all}
          id={(n) => n.id}
          columns={[
            { name: 'Name', of: (n) => <a href={nodeURL(n)}><T>{n.id}</T></a> },
            { name: 'State', of: (n) => <State of={n.status} /> },
            { name: 'Heard', of: (n) => <Heard of={n} /> },
            { name: 'Instances', number: true, of: (n) => n.instances },
            { name: 'Load', of: (n) => <Spark label="Processors in use" values={loads.get(n.id)} top={100} text={n.cpu_used_percent + ' %'} /> },
            { name: 'Processors', wide: true, of: (n) => <Bar label="Processors" part={n.allocated.milli_cpu} of={n.capacity.milli_cpu} text={cpus(n.allocated.milli_cpu) + ' of ' + cpus(n.capacity.milli_cpu) + ' reserved'} /> },
            { name: 'Memory', of: (n) => <Bar label="Memory" part={n.allocated.memory_mb} of={n.capacity.memory_mb} text={memory(n.allocated.memory_mb) + ' of ' + memory(n.capacity.memory_mb) + ', ' + n.memory_used_percent + ' % used'} /> },
            { name: 'Version', wide: true, of: (n) => <T>{n.version}</T> },
            { name: '', of: (n) => <Commands node={n} at={at} again={nodes.again} /> },
          ]}
        />
      )}
      <DataAge at={nodes.at} />
    </>
  );
}
