// Clusters at their places, without a map of the world, and the tree of clusters and their load.
import type { Cluster } from '../types';
import { to } from '../route';
import { clean, cpus } from '../text';
import { State, T } from './basics';

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

/** Draws clusters by longitude and latitude, if at least two have places that differ. */
export function FederationMap({ clusters }: { clusters: Cluster[] }) {
  const places = clusters.map(placeOf).filter((p): p is Place => p !== undefined).slice(0, 200);
  const span = (of: (p: Place) => number): [number, number] => {
    const all = places.map(of);
    const low = Math.min(...all);
    const high = Math.max(...all);
    const margin = Math.max(0.05, (high - low) * 0.15);
    return [low - margin, high + margin];
  };
  if (places.length < 2) return null;
  const [west, east] = span((p) => p.lon);
  const [south, north] = span((p) => p.lat);
  if (east - west < 0.2 && north - south < 0.2) return null; // one town: the tree shows more
  const x = (lon: number) => ((lon - west) / (east - west)) * width;
  const y = (lat: number) => height - ((lat - south) / (north - south)) * height;
  const lines = (low: number, high: number) => {
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30].find((s) => (high - low) / s <= 8) || 45;
    const out = [];
    for (let v = Math.ceil(low / step) * step; v <= high; v += step) out.push(Math.round(v * 10) / 10);
    return out;
  };
  return (
    <figure class="map">
      <svg viewBox={'0 0 ' + width + ' ' + height} role="group" aria-label="Map of clusters">
        {lines(west, east).map((v) => <g key={'x' + v} class="grid"><path d={`M${x(v)} 0V${height}`} /><text x={x(v) + 3} y={height - 4}>{Math.abs(v)}°{v < 0 ? 'W' : 'E'}</text></g>)}
        {lines(south, north).map((v) => <g key={'y' + v} class="grid"><path d={`M0 ${y(v)}H${width}`} /><text x="3" y={y(v) - 3}>{Math.abs(v)}°{v < 0 ? 'S' : 'N'}</text></g>)}
        {places.map((p) => (
          <a key={p.cluster.id} href={to('cluster', p.cluster.id)} aria-label={clean(p.cluster.id) + ', ' + clean(p.cluster.status)} class={p.cluster.status === 'ready' ? 'good' : 'bad'}>
            <circle cx={x(p.lon)} cy={y(p.lat)} r={6 + 2 * Math.log2(1 + p.cluster.aggregate.nodes)} />
            <text x={x(p.lon)} y={y(p.lat) - 14} text-anchor="middle">{clean(p.cluster.id).slice(0, 24)}</text>
          </a>
        ))}
      </svg>
      <figcaption class="faint">Clusters by their configured place; larger ones have more nodes.</figcaption>
    </figure>
  );
}

/** The root and its clusters, each with the load of its processors. */
export function Tree({ clusters }: { clusters: Cluster[] }) {
  return (
    <ul class="tree" aria-label="Topology">
      <li>
        <span class="leaf"><b>root</b></span>
        <ul>
          {clusters.slice(0, 100).map((c) => {
            const of = c.aggregate.capacity.milli_cpu;
            const used = of - c.aggregate.free.milli_cpu;
            return (
              <li key={c.id}>
                <span class="leaf">
                  <a href={to('cluster', c.id)}><T>{c.id}</T></a> <State of={c.status} />{' '}
                  <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="whole" width="100" height="8" /><rect class="part" width={of ? (100 * used) / of : 0} height="8" /></svg>{' '}
                  <span class="faint">{c.aggregate.nodes} nodes, {cpus(used)} of {cpus(of)} processors, {c.instances} instances</span>
                </span>
              </li>
            );
          })}
        </ul>
      </li>
    </ul>
  );
}
