// Clusters at their places, without a map of the world, and the tree of clusters, nodes and their load.
import { useState } from 'preact/hooks';
import type { Cluster } from '../types';
import { segment } from '../http';
import { may } from '../may';
import { to } from '../route';
import { clean, count, cpus } from '../text';
import { DataAge, Failure, State, T } from './basics';
import { nodeURL, useLoads, useNodes } from './nodes';
import { Spark } from './spark';

interface Place {
  cluster: Cluster;
  lat: number;
  lon: number;
}

function placeOf(c: Cluster): Place | undefined {
  const m = /^\s*(-?\d+(?:\.\d+)?)\s*([NS]?)\s*,\s*(-?\d+(?:\.\d+)?)\s*([EW]?)\s*$/.exec(c.location || '');
  if (!m) return undefined;
  const lat = Number(m[1]) * (m[2] === 'S' ? -1 : 1);
  const lon = Number(m[3]) * (m[4] === 'W' ? -1 : 1);
  return Math.abs(lat) <= 90 && Math.abs(lon) <= 180 ? { cluster: c, lat, lon } : undefined;
}

const width = 720;
const height = 320;

/** The share of a cluster's processors that is reserved. */
function loadOf(c: Cluster): number {
  const of = c.aggregate.capacity.milli_cpu;
  return of > 0 ? Math.min(1, Math.max(0, (of - c.aggregate.free.milli_cpu) / of)) : 0;
}

/** Moves places across the date line if they are closer together there. */
function together(places: Place[]): Place[] {
  const span = (all: number[]) => Math.max(...all) - Math.min(...all);
  const east = places.map((p) => ({ ...p, lon: p.lon < 0 ? p.lon + 360 : p.lon }));
  return span(east.map((p) => p.lon)) < span(places.map((p) => p.lon)) ? east : places;
}

/** Draws clusters by longitude and latitude, if at least two have places that differ. */
export function FederationMap({ clusters }: { clusters: Cluster[] }) {
  const found = clusters.map(placeOf).filter((p): p is Place => p !== undefined).slice(0, 200);
  if (found.length < 2) return null;
  const places = together(found);
  const range = (of: (p: Place) => number): [low: number, high: number] => [Math.min(...places.map(of)), Math.max(...places.map(of))];
  const [west, east] = range((p) => p.lon);
  const [south, north] = range((p) => p.lat);
  if (east - west < 0.2 && north - south < 0.2) return null; // one town: the tree shows more
  // One scale for both directions; a degree of longitude is shorter away from the equator.
  const middle = [(west + east) / 2, (south + north) / 2];
  const narrow = Math.max(0.2, Math.cos((middle[1] * Math.PI) / 180));
  const scale = Math.min((0.8 * width) / Math.max(0.1, (east - west) * narrow), (0.7 * height) / Math.max(0.1, north - south));
  const x = (lon: number) => width / 2 + (lon - middle[0]) * narrow * scale;
  const y = (lat: number) => height / 2 - (lat - middle[1]) * scale;
  const lines = (centre: number, half: number) => {
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30].find((s) => (2 * half) / s <= 8) || 45;
    const out = [];
    for (let v = Math.ceil((centre - half) / step) * step; v <= centre + half; v += step) out.push(Math.round(v * 10) / 10);
    return out;
  };
  const meridian = (v: number) => (v > 180 ? 360 - v + '°W' : Math.abs(v) + '°' + (v < 0 ? 'W' : 'E'));
  // Names that would cover others are left out; the table below has all.
  const named: [x: number, y: number][] = [];
  const free = (px: number, py: number) => {
    if (named.some(([ox, oy]) => Math.abs(ox - px) < 90 && Math.abs(oy - py) < 16)) return false;
    named.push([px, py]);
    return true;
  };
  const circle = (r: number) => 2 * Math.PI * r;
  return (
    <figure class="map">
      <svg viewBox={'0 0 ' + width + ' ' + height} role="group" aria-label="Map of clusters">
        {lines(middle[0], width / 2 / narrow / scale).map((v) => <g key={'x' + v} class="grid"><path d={`M${x(v)} 0V${height}`} /><text x={x(v) + 3} y={height - 4}>{meridian(v)}</text></g>)}
        {lines(middle[1], height / 2 / scale).filter((v) => Math.abs(v) <= 90).map((v) => <g key={'y' + v} class="grid"><path d={`M0 ${y(v)}H${width}`} /><text x="3" y={y(v) - 3}>{Math.abs(v)}°{v < 0 ? 'S' : 'N'}</text></g>)}
        {places.map((p) => {
          const r = 6 + 2 * Math.min(8, Math.log2(1 + p.cluster.aggregate.nodes));
          const load = loadOf(p.cluster);
          const text = clean(p.cluster.id) + ', ' + clean(p.cluster.status) + ', ' + p.cluster.aggregate.nodes + ' nodes, ' + Math.round(100 * load) + ' % reserved';
          return (
            <a key={p.cluster.id} href={to('cluster', p.cluster.id)} aria-label={text} class={p.cluster.status === 'ready' ? 'good' : 'bad'}>
              <title>{text}</title>
              <circle class="spot" cx={x(p.lon)} cy={y(p.lat)} r={r} />
              <circle class="ring" cx={x(p.lon)} cy={y(p.lat)} r={r + 3} stroke-dasharray={(load * circle(r + 3)).toFixed(1) + ' ' + circle(r + 3).toFixed(1)} transform={`rotate(-90 ${x(p.lon)} ${y(p.lat)})`} />
              {free(x(p.lon), y(p.lat) - r - 8) && <text x={x(p.lon)} y={y(p.lat) - r - 8} text-anchor="middle">{clean(p.cluster.id).slice(0, 24)}</text>}
            </a>
          );
        })}
      </svg>
      <figcaption class="faint">
        Clusters by their configured place; larger ones have more nodes, and the ring is the reserved share of processors.
        {clusters.length > places.length && ' ' + count(clusters.length - places.length, 'cluster') + ' without a place ' + (clusters.length - places.length === 1 ? 'is' : 'are') + ' not drawn.'}
      </figcaption>
    </figure>
  );
}

function Fill({ share }: { share: number }) {
  return <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="whole" width="100" height="8" /><rect class={share > 0.9 ? 'part high' : 'part'} width={100 * Math.min(1, Math.max(0, share))} height="8" /></svg>;
}

const maxLeaves = 50; // nodes that are drawn of a cluster

/** The nodes of a cluster with their load. */
function Leaves({ cluster }: { cluster: string }) {
  const nodes = useNodes('/v1/clusters/' + segment(cluster) + '/nodes');
  const loads = useLoads(nodes);
  const all = nodes.value || [];
  return (
    <>
      <Failure of={nodes.error} />
      <ul aria-label={'Nodes of ' + clean(cluster)}>
        {all.slice(0, maxLeaves).map((n) => (
          <li key={n.id}>
            <span class="leaf" data-node={n.id}>
              <a href={nodeURL(n)}><T>{n.id}</T></a> <State of={n.status} /> <Spark label="Processors in use" values={loads.get(n.id)} top={100} text={n.cpu_used_percent + ' %'} />{' '}
              <span class="faint">{n.memory_used_percent} % of memory, {count(n.instances, 'instance')}</span>
            </span>
          </li>
        ))}
      </ul>
      {all.length > maxLeaves && <p class="faint">The first {maxLeaves} of {all.length}. The cluster's page has all.</p>}
      <DataAge at={nodes.at} />
    </>
  );
}

function Branch({ of, open }: { of: Cluster; open: boolean }) {
  const shown = may('nodes', of.tenant || '');
  const [opened, set] = useState(open);
  const cpu = of.aggregate.capacity.milli_cpu;
  return (
    <li>
      <span class="leaf">
        <a href={to('cluster', of.id)}><T>{of.id}</T></a> <State of={of.status} />{' '}
        <span class="bars"><Fill share={loadOf(of)} /></span>{' '}
        <span class="faint">{count(of.aggregate.nodes, 'node')}, {cpus(cpu - of.aggregate.free.milli_cpu)} of {cpus(cpu)} processors reserved, {count(of.instances, 'instance')}</span>
        {shown && <button type="button" class="link" aria-expanded={opened} aria-label={(opened ? 'Hide nodes' : 'Show nodes') + ' of ' + clean(of.id)} onClick={() => set(!opened)}>{opened ? 'Hide nodes' : 'Show nodes'}</button>}
      </span>
      {shown && opened && <Leaves cluster={of.id} />}
    </li>
  );
}

/** The root, its clusters and, for those who may see them, the nodes, each with its load. */
export function Tree({ clusters }: { clusters: Cluster[] }) {
  return (
    <ul class="tree" aria-label="Topology">
      <li>
        <span class="leaf"><b>root</b></span>
        <ul>{clusters.slice(0, 100).map((c) => <Branch key={c.id} of={c} open={clusters.length <= 5} />)}</ul>
        {clusters.length > 100 && <p class="faint">The first 100 of {clusters.length}.</p>}
      </li>
    </ul>
  );
}
