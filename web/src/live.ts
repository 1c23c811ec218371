// The objects of the page, kept current by one stream of changes (GET /v1/changes).
//
// Each object has the revision at which it was read. A change with an older one is ignored, so that
// lists and the stream may arrive in any order.
import type { App, Cluster, CustomKind, CustomResource, Event, Instance, Node, Service, Status } from './types';
import { get, list, Page, Refused, send, tier } from './http';
import { may } from './may';

interface Kinds {
  app: App;
  service: Service;
  instance: Instance;
  cluster: Cluster;
  node: Node; // at a cluster
  kind: CustomKind;
  resource: CustomResource;
}
type Kind = keyof Kinds;

/** Kinds of which, at the root, only the objects that a page shows are kept, and where they are read. */
const lists = { instance: '/v1/instances', kind: '/v1/kinds', resource: '/v1/resources' };
type Watched = keyof typeof lists;

interface Change {
  kind: Kind | 'event';
  id: string;
  revision: number;
  object?: unknown;
}

interface Entry<T> {
  at: number;
  object?: T; // missing: removed
}

const maxEvents = 500;
const maxRemoved = 2000; // entries of removed objects, per kind

class Kept<T> {
  private all = new Map<string, Entry<T>>();
  private removed = 0;

  put(id: string, at: number, object?: T) {
    const old = this.all.get(id);
    if (old && old.at > at) return;
    this.all.delete(id); // so that the order is that of the changes
    this.all.set(id, { at, object });
    if (!object && (!old || old.object) && ++this.removed > maxRemoved) {
      for (const [k, e] of this.all) {
        if (e.object) continue;
        this.all.delete(k);
        if (--this.removed <= maxRemoved / 2) break;
      }
    }
  }

  /** Replaces the objects that select chooses with the list read at a revision. */
  read(items: T[], id: (o: T) => string, at: number, select: (o: T) => boolean) {
    const found = new Set(items.map(id));
    for (const [k, e] of this.all) if (e.object && select(e.object) && !found.has(k)) this.put(k, at);
    for (const o of items) this.put(id(o), at, o);
  }

  get(id: string): T | undefined {
    return this.all.get(id)?.object;
  }

  list(id: (o: T) => string): T[] {
    const out: T[] = [];
    for (const e of this.all.values()) if (e.object) out.push(e.object);
    return out.sort((a, b) => id(a).localeCompare(id(b), 'en', { numeric: true }));
  }
}

function nothing(): { [K in Kind]: Kept<Kinds[K]> } {
  return { app: new Kept(), service: new Kept(), instance: new Kept(), cluster: new Kept(), node: new Kept(), kind: new Kept(), resource: new Kept() };
}

export type Standing = 'connecting' | 'live' | 'broken';

class Live {
  standing: Standing = 'connecting';
  heard = 0; // performance.now() of the last bytes of the stream
  error = '';
  events: Event[] = []; // the newest, oldest first
  status?: Status; // of a cluster, at its own dashboard
  loaded = false;

  private kept = nothing();
  private shown = new Map<string, { kind: Watched; under: string; times: number }>();
  private read = new Set<string>(); // the keys of shown that were read
  private position = '';
  private stopping?: AbortController;
  private listeners = new Set<() => void>();
  private followers = new Set<(kind: string) => void>();
  private drawn = false;

  subscribe(fn: () => void): () => void {
    this.listeners.add(fn);
    return () => this.listeners.delete(fn);
  }

  /** Calls fn with the kind of each new event, at a cluster also of each changed object, and with "" if some may have been missed. */
  follow(fn: (kind: string) => void): () => void {
    this.followers.add(fn);
    return () => this.followers.delete(fn);
  }

  /** Tells the listeners, once per frame. */
  private changed() {
    if (this.drawn) return;
    this.drawn = true;
    const tell = () => {
      this.drawn = false;
      this.listeners.forEach((fn) => fn());
    };
    if (document.hidden) setTimeout(tell, 200);
    else requestAnimationFrame(tell);
  }

  get<K extends Kind>(kind: K, id: string): Kinds[K] | undefined {
    return this.kept[kind].get(id) as Kinds[K] | undefined;
  }

  list<K extends Kind>(kind: K): Kinds[K][] {
    return (this.kept[kind] as Kept<Kinds[K]>).list((o) => o.id);
  }

  /** Keeps the objects of a kind below another object, or all for "", until the returned function is called. */
  watch(kind: Watched, under: string): () => void {
    const key = kind + ' ' + under;
    const s = this.shown.get(key) || { kind, under, times: 0 };
    s.times++;
    this.shown.set(key, s);
    this.readList(kind, under).catch((e) => this.fail(e));
    return () => {
      if (--s.times > 0) return;
      this.shown.delete(key);
      this.read.delete(key);
    };
  }

  /** Whether the objects that watch keeps are there. */
  has(kind: Watched, under: string): boolean {
    return this.read.has(kind + ' ' + under);
  }

  private async readList(kind: Watched, under: string) {
    const p = await list<{ id: string }>(lists[kind] + (under ? '?under=' + encodeURIComponent(under) : ''));
    (this.kept[kind] as Kept<{ id: string }>).read(p.items, (o) => o.id, p.revision || 0, (o) => within(o.id, under));
    this.read.add(kind + ' ' + under);
    this.changed();
  }

  start() {
    this.stop();
    const c = (this.stopping = new AbortController());
    void this.run(c.signal);
  }

  stop() {
    this.stopping?.abort();
    this.kept = nothing();
    this.events = [];
    this.status = undefined;
    this.position = '';
    this.loaded = false;
    this.standing = 'connecting';
  }

  private fail(e: unknown) {
    this.error = e instanceof Error ? e.message : String(e);
    this.standing = 'broken';
    this.changed();
  }

  private async run(signal: AbortSignal) {
    for (let wait = 250; !signal.aborted; ) {
      try {
        if (!this.position) await (tier === 'cluster' ? this.readCluster() : this.readAll());
        if (signal.aborted) return;
        await this.stream(signal, () => (wait = 250));
      } catch (e) {
        if (signal.aborted) return;
        if (e instanceof Refused && e.problem.status === 410) this.position = '';
        this.fail(e);
      }
      await new Promise((done) => setTimeout(done, wait * (0.5 + Math.random())));
      wait = Math.min(wait * 2, 10_000);
    }
  }

  /** Reads all lists. Kinds that the user may not see are empty. */
  private async readAll() {
    const none = { items: [] };
    const all = await Promise.all([
      may('apps') ? list<App>('/v1/apps') : none,
      may('apps') ? list<Service>('/v1/services') : none,
      may('clusters') ? list<Cluster>('/v1/clusters') : none,
      may('events') ? get<Page<Event>>('/v1/events?limit=' + maxEvents + '&tail=' + maxEvents) : none,
    ]);
    const [apps, services, clusters, events]: [Page<App>, Page<Service>, Page<Cluster>, Page<Event>] = all;
    // The root may have been restored from a backup, with lower revisions.
    this.kept = nothing();
    const every = () => true;
    this.kept.app.read(apps.items, (o) => o.id, apps.revision || 0, every);
    this.kept.service.read(services.items, (o) => o.id, services.revision || 0, every);
    this.kept.cluster.read(clusters.items, (o) => o.id, clusters.revision || 0, every);
    this.events = events.items || [];
    for (const { kind, under } of this.shown.values()) await this.readList(kind, under);
    this.from([apps, services, clusters, events]);
  }

  /** Reads all that a cluster has. */
  private async readCluster() {
    const [nodes, instances, events, status] = await Promise.all([
      get<Page<Node>>('/v1/nodes'), get<Page<Instance>>('/v1/instances'), get<Page<Event>>('/v1/events'), get<Status>('/v1/status'),
    ]);
    this.kept = nothing();
    this.kept.node.read(nodes.items || [], (o) => o.id, nodes.revision || 0, () => true);
    this.kept.instance.read(instances.items || [], (o) => o.id, instances.revision || 0, () => true);
    this.events = (events.items || []).slice(-maxEvents);
    this.status = status;
    this.from([nodes, instances, events]);
  }

  /** Begins at the oldest of the lists. */
  private from(lists: Page<unknown>[]) {
    const read = lists.map((p) => p.revision).filter((r): r is number => r !== undefined);
    this.position = String(read.length ? Math.min(...read) : 0);
    this.loaded = true;
    this.followers.forEach((fn) => fn(''));
    this.changed();
  }

  private async stream(signal: AbortSignal, works: () => void) {
    const r = await send('GET', '/v1/changes', { signal, headers: { 'Last-Event-ID': this.position } });
    const reader = r.body!.getReader();
    const decoder = new TextDecoder();
    let buffer = '';
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        works();
        this.heard = performance.now();
        this.standing = 'live';
        this.error = '';
        buffer += decoder.decode(value, { stream: true });
        for (let end; (end = buffer.indexOf('\n\n')) >= 0; buffer = buffer.slice(end + 2)) this.message(buffer.slice(0, end));
        this.changed();
      }
    } finally {
      void reader.cancel().catch(() => {}); // closes the connection
    }
  }

  private message(text: string) {
    let name = '';
    let id = '';
    let data = '';
    for (const line of text.split('\n')) {
      if (line.startsWith('event: ')) name = line.slice(7);
      else if (line.startsWith('id: ')) id = line.slice(4);
      else if (line.startsWith('data: ')) data += line.slice(6);
    }
    if (name === 'gone') {
      this.position = '';
      throw new Error('Changes came faster than they could be read.');
    }
    if (name === 'change') this.apply(JSON.parse(data) as Change);
    if (id) this.position = id;
  }

  private apply(c: Change) {
    if (c.kind === 'event') {
      const e = c.object as Event | undefined;
      if (!e || this.events.some((o) => o.seq === e.seq) || (this.events.length >= maxEvents && e.seq < this.events[0].seq)) return;
      this.events = [...this.events, e].sort((a, b) => a.seq - b.seq).slice(-maxEvents); // those of a cluster may come in another order
      this.followers.forEach((fn) => fn(e.kind));
      return;
    }
    if (tier === 'cluster') {
      if (c.kind === 'cluster') this.status = c.object as Status;
      else (this.kept[c.kind] as Kept<unknown> | undefined)?.put(c.id, c.revision, c.object);
      this.followers.forEach((fn) => fn(c.kind));
      return;
    }
    const kept = this.kept[c.kind] as Kept<unknown> | undefined;
    if (!kept) return; // a kind of a newer root
    if (c.kind in lists && ![...this.shown.values()].some((s) => s.kind === c.kind && within(c.id, s.under))) return;
    kept.put(c.id, c.revision, c.object);
  }
}

/** Whether an id is that of the application, service or custom kind, or below it; all are below "". */
export function within(id: string, under: string): boolean {
  return !under || (id.startsWith(under) && (id.length === under.length || '.#:'.includes(id[under.length])));
}

export const live = new Live();
