// The text of an SLA: the lines of its values, and the services and links in it.
import type { LinkStatus } from './types';
import { serviceOf, short } from './text';

/** The line, from 1, of the value at a JSON pointer, or of the nearest one around it; 0 if unknown. */
export function lineOf(text: string, pointer: string): number {
  const path = pointer.split('/').slice(1).map((p) => p.replace(/~1/g, '/').replace(/~0/g, '~'));
  return /^\s*[{[]/.test(text) ? lineInJSON(text, path) : lineInYAML(text, path);
}

function lineInJSON(text: string, path: string[]): number {
  let at = 0;
  let found = 0; // the offset of the deepest value on the path
  const token = /\s*(?:"((?:[^"\\]|\\.)*)"|[^\s{}[\],:"]+|[{}[\],:])/y;
  const next = () => {
    token.lastIndex = at;
    const m = token.exec(text);
    if (!m) return undefined;
    at = token.lastIndex;
    return m[0].trimStart();
  };
  const peek = () => {
    const was = at;
    const t = next();
    at = was;
    return t;
  };
  // value reads a value; depth is how many steps of the path lead to it, -1 if it is not on the path.
  const value = (depth: number): boolean => {
    const t = next();
    if (t === undefined) return false;
    if (depth >= 0) found = at - t.length;
    if (t !== '{' && t !== '[') return true;
    const end = t === '{' ? '}' : ']';
    for (let n = 0; ; n++) {
      if (peek() === end) return next() !== undefined;
      let key = String(n);
      const begin = at;
      if (t === '{') {
        key = (next() || '').replace(/^"|"$/g, '');
        if (next() !== ':') return false;
      }
      const on = depth >= 0 && path[depth] === key;
      if (on && t === '{') found = begin + (text.slice(begin).match(/^\s*/)?.[0].length || 0);
      const key0 = found;
      if (!value(on ? depth + 1 : -1)) return false;
      if (on && depth + 1 === path.length && t === '{') found = key0; // the line of the key
      const sep = next();
      if (sep === end) return true;
      if (sep !== ',') return false;
    }
  };
  value(0);
  return text.slice(0, found).split('\n').length;
}

/** Follows the path by indentation, which is what people write. Values in braces are on one line. */
function lineInYAML(text: string, path: string[]): number {
  const lines = text.split('\n');
  let line = 0; // of the deepest value found, from 0
  let from = 0;
  let indent = -1;
  for (const step of path) {
    let number = -1;
    let level = -1;
    let hit = -1;
    for (let n = from; n < lines.length; n++) {
      const l = lines[n].replace(/^(\s*)- /, (m) => (/^\d+$/.test(step) ? m : m.replace('-', ' ')));
      const content = l.trim();
      if (!content || content.startsWith('#')) continue;
      const depth = l.length - l.trimStart().length;
      if (depth < indent || (depth === indent && n > from && !content.startsWith('-') && !/^\d+$/.test(step) && level > depth)) break;
      if (level < 0) level = depth;
      if (depth < level) break;
      if (depth !== level) continue;
      if (/^\d+$/.test(step)) {
        if (!content.startsWith('-')) break;
        if (++number === Number(step)) hit = n;
      } else if (content.replace(/^["']|["']?\s*:.*$/g, '') === step) hit = n;
      if (hit >= 0) {
        indent = level;
        break;
      }
    }
    if (hit < 0) break;
    line = hit;
    from = /^\d+$/.test(step) ? hit : hit + 1;
    if (!/^\d+$/.test(step) && /:\s*[{[]/.test(lines[hit])) break; // the rest is on this line
  }
  return line + 1;
}

export interface Link {
  from: string;
  to: string;
  ms: number;
  now?: Measured;
}

/** The longest of the round trips of a link's instances. */
export interface Measured {
  ms: number;
  by: string;
  instances: number;
}

/** The links with the round trips that clusters report. */
export function withLatencies(links: Link[], reported: LinkStatus[]): Link[] {
  const now = new Map<string, Measured>();
  for (const l of reported) {
    const key = nameOf(serviceOf(l.instance)) + '>' + l.to.split('.')[0];
    const was = now.get(key);
    const ms = l.rtt_ns / 1e6;
    now.set(key, { ...(was && was.ms > ms ? was : { ms, by: l.by }), instances: (was?.instances || 0) + 1 });
  }
  return links.map((l) => ({ ...l, now: now.get(l.from + '>' + l.to) }));
}

/** The name of a service in its id, which ends with application, namespace, service and namespace. */
function nameOf(service: string): string {
  return short(service).split('.')[2] || '';
}

interface Service {
  microservice_name: string;
  microservice_namespace?: string;
  connectivity?: { target_microservice_id: string; con_constraints: { type: string; threshold: number }[] }[];
}

interface Document {
  applications: { microservices: Service[] }[];
}

/** The document, if the text is one as JSON. */
export function parse(text: string): Document | undefined {
  try {
    const d = JSON.parse(text);
    return Array.isArray(d.applications) && d.applications.every((a: { microservices?: unknown }) => Array.isArray(a.microservices)) ? d : undefined;
  } catch {
    return undefined;
  }
}

/** Whether the text has services and no application, as Oakestra's dashboard takes it on the page of an application. */
export function servicesAlone(text: string): boolean {
  try {
    const d = JSON.parse(text);
    return typeof d === 'object' && d !== null && 'microservices' in d && !('applications' in d);
  } catch {
    return /^microservices\s*:/m.test(text) && !/^applications\s*:/m.test(text);
  }
}

export function linksOf(services: Service[]): Link[] {
  const out: Link[] = [];
  for (const s of services)
    for (const c of s.connectivity || [])
      for (const k of c.con_constraints || [])
        if (k.type === 'latency') out.push({ from: s.microservice_name, to: String(c.target_microservice_id).split('.')[0], ms: Number(k.threshold) });
  return out;
}

/** The text with a demand on the latency of a link, or without one if ms is undefined. */
export function withLink(text: string, from: string, to: string, ms: number | undefined): string {
  const d = parse(text);
  const s = d?.applications[0]?.microservices.find((m) => m.microservice_name === from);
  if (!d || !s) return text;
  const links = (s.connectivity ||= []);
  let c = links.find((l) => l.target_microservice_id.split('.')[0] === to);
  if (!c) links.push((c = { target_microservice_id: to, con_constraints: [] }));
  c.con_constraints = (c.con_constraints || []).filter((k) => k.type !== 'latency');
  if (ms !== undefined) c.con_constraints.push({ type: 'latency', threshold: ms });
  s.connectivity = links.filter((l) => l.con_constraints.length > 0);
  if (s.connectivity.length === 0) delete s.connectivity;
  return JSON.stringify(d, undefined, 2) + '\n';
}
