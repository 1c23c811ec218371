import { useState } from 'preact/hooks';
import type { NetStatus, Node, PeerStatus, RouteStatus, Service } from '../types';
import { get, Page, segment } from '../http';
import { may } from '../may';
import { DataAge, Empty, Failure, State, T, Table, useLive, useLoaded } from '../parts/basics';
import { refresh } from '../parts/nodes';
import { to } from '../route';
import { duration, short } from '../text';

function Tunnels({ cluster }: { cluster: string }) {
  const nodes = useLoaded((s) => get<Page<Node>>('/v1/clusters/' + segment(cluster) + '/nodes', s), cluster, refresh);
  const [chosen, choose] = useState('');
  const with_ = (nodes.value?.items || []).filter((n) => n.network === 'overlay' || n.subnet);
  const node = with_.find((n) => n.id === chosen)?.id || with_[0]?.id || '';
  const at = '/v1/clusters/' + segment(cluster) + '/nodes/' + segment(node) + '/net';
  const net = useLoaded(
    async (s) => {
      const [status, peers, routes] = await Promise.all([get<NetStatus>(at, s), get<Page<PeerStatus>>(at + '/peers', s), get<Page<RouteStatus>>(at + '/routes', s)]);
      return { status, peers: peers.items || [], routes: routes.items || [] };
    },
    node && cluster + ' ' + node,
    refresh,
  );
  if (!nodes.value) return <Failure of={nodes.error} />;
  if (with_.length === 0)
    return (
      <>
        <Empty command="treeline get nodes -o wide" docs="/docs/how-to/network#which-nodes-have-it">No node of this cluster has an overlay network.</Empty>
        <Failure of={nodes.error} />
        <DataAge at={nodes.at} />
      </>
    );
  const ms = (ns?: number) => (ns ? (ns / 1e6).toFixed(1) + ' ms' : '');
  return (
    <>
      <label class="filter">
        Node <select name="node" value={node} onChange={(e) => choose(e.currentTarget.value)}>{with_.map((n) => <option key={n.id}>{n.id}</option>)}</select>
      </label>
      <Failure of={net.error} />
      {net.value && (
        <>
          <p>
            <State of={net.value.status.ready ? 'ready' : 'starting'} /> <T>{net.value.status.plane}</T>, subnet <code><T>{net.value.status.subnet}</T></code>
            {net.value.status.error && <span class="stale"> <T>{net.value.status.error}</T></span>}
          </p>
          <h3>Tunnels</h3>
          {net.value.peers.length === 0 ? (
            <Empty command={'treeline net peers ' + cluster + '/' + node}>It has exchanged packets with no other node yet.</Empty>
          ) : (
            <Table<PeerStatus>
              label="Tunnels"
              rows={net.value.peers}
              id={(p) => p.key}
              columns={[
                { name: 'Node', of: (p) => <><T>{p.node || p.key.slice(0, 12)}</T>{p.cluster && p.cluster !== cluster && <span class="faint"> of <T>{p.cluster}</T></span>}</> },
                { name: 'Path', of: (p) => <T>{p.path}</T> },
                { name: 'Round trip', number: true, of: (p) => ms(p.rtt_ns) },
                { name: 'Loss', number: true, of: (p) => (100 * p.loss).toFixed(1) + ' %' },
                { name: 'Endpoint', wide: true, of: (p) => <code><T>{p.endpoint}</T></code> },
                { name: 'Why', wide: true, of: (p) => <T>{p.reason}</T> },
              ]}
            />
          )}
          <h3>Routes</h3>
          {net.value.routes.length === 0 ? (
            <Empty command={'treeline net routes ' + cluster + '/' + node}>Its services have called no other service yet.</Empty>
          ) : (
            <Table<RouteStatus>
              label="Routes"
              rows={net.value.routes}
              id={(r) => r.service}
              columns={[
                { name: 'Service', of: (r) => <T>{r.service}</T> },
                { name: 'Instances', number: true, of: (r) => (r.backends || []).length + (r.asleep ? ' + asleep' : '') },
                { name: 'Idle', number: true, of: (r) => duration(r.idle_ns / 1e6) },
                { name: 'Latency', of: (r) => Object.entries(r.latency_ns || {}).slice(0, 4).map(([i, ns]) => <div key={i}><T>{i}</T> {ms(ns)}</div>) },
                { name: 'Refused', wide: true, of: (r) => <T>{r.refused}</T> },
              ]}
            />
          )}
          <DataAge at={net.at} />
        </>
      )}
    </>
  );
}

export function Network() {
  const l = useLive();
  const services = l.list('service').filter((s) => s.addresses && (s.addresses.rr || s.addresses.closest));
  const clusters = l.list('cluster').filter((c) => may('nodes', c.tenant || ''));
  const [chosen, choose] = useState('');
  const cluster = clusters.find((c) => c.id === chosen)?.id || clusters[0]?.id || '';
  return (
    <>
      <h1>Network</h1>
      <h2>Addresses of services</h2>
      {services.length === 0 ? (
        <Empty command="treeline get services -o wide">No service has an address on the overlay network.</Empty>
      ) : (
        <Table<Service>
          label="Addresses"
          rows={services}
          id={(s) => s.id}
          columns={[
            { name: 'Service', of: (s) => <a href={to('service', s.id)}><T>{short(s.id)}</T></a> },
            { name: 'Any instance', of: (s) => <code><T>{s.addresses!.rr}</T></code> },
            ...(services.some((s) => s.addresses!.closest) ? [{ name: 'Closest', of: (s: Service) => s.addresses!.closest && <code><T>{s.addresses!.closest}</T></code> }] : []),
            ...(services.some((s) => s.addresses!.instances) ? [{ name: 'Instances', wide: true, of: (s: Service) => Object.entries(s.addresses!.instances || {}).slice(0, 8).map(([n, a]) => <div key={n}>#{n} <code><T>{a}</T></code></div>) }] : []),
          ]}
        />
      )}
      {cluster && (
        <>
          <h2>Tunnels and routes</h2>
          {clusters.length > 1 && (
            <label class="filter">
              Cluster <select name="cluster" value={cluster} onChange={(e) => choose(e.currentTarget.value)}>{clusters.map((c) => <option key={c.id}>{c.id}</option>)}</select>
            </label>
          )}
          <Tunnels key={cluster} cluster={cluster} />
        </>
      )}
    </>
  );
}
