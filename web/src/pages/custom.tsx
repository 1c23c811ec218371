// Custom kinds and their resources, which programs of a tenant give a meaning.
import { useEffect, useState } from 'preact/hooks';
import type { CustomKind, CustomResource } from '../types';
import { get, Refused, segment, send, User } from '../http';
import { Age, Dangerous, Empty, Failure, T, Table, useLive } from '../parts/basics';
import { Editor, Faults, marksOf } from '../parts/editor';
import { EventTable } from '../parts/events';
import { TenantChoice, useTenants } from '../parts/tenant';
import { live, within } from '../live';
import { to } from '../route';
import { clean, count, short } from '../text';

const how = '/docs/how-to/custom-resources';
const loading = <p class="faint">Loading…</p>;

/** The kind of a resource's id: acme/sensor of acme/sensor:roof. */
function kindOf(resource: string): string {
  return resource.replace(/:.*$/, '');
}

function tenantOf(id: string): string {
  return id.slice(0, id.lastIndexOf('/'));
}

/** Throws if the value has a number that a browser changes. */
function exact(value: unknown) {
  if (typeof value === 'number' && (!isFinite(value) || Math.abs(value) > Number.MAX_SAFE_INTEGER))
    throw new Error('The document has a number beyond ±2^53, which browsers do not keep exactly. Change it with: treeline apply -f FILE');
  if (value && typeof value === 'object') Object.values(value).forEach(exact);
}

/** A document as YAML or JSON. save sends what it says. */
function Document({ value, label, name, save, readOnly }: { value: unknown; label: string; name: string; save: (d: Record<string, unknown>) => Promise<void>; readOnly?: string }) {
  const [yaml, setYAML] = useState<typeof import('../yaml') | undefined>();
  const [text, setText] = useState('');
  const [asYAML, setAsYAML] = useState(true);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const write = (v: unknown, y: boolean, m = yaml) => (y && m ? m.toYAML(v) : JSON.stringify(v, undefined, 2) + '\n');
  useEffect(() => {
    import('../yaml').then((m) => (setYAML(m), setText(write(value, true, m))), setError);
  }, []);
  const attempt = async (act: () => Promise<void> | void) => {
    setBusy(true);
    setError(undefined);
    try {
      await act();
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  const read = () => {
    const v = yaml!.fromYAML(text);
    exact(v);
    if (!v || typeof v !== 'object' || Array.isArray(v)) throw new Error('The document is no object.');
    return v as Record<string, unknown>;
  };
  const marks = marksOf(text, error);
  const convert = (y: boolean) =>
    attempt(() => {
      setText(write(read(), y));
      setAsYAML(y);
    });
  if (!yaml) return error ? <Failure of={error} /> : loading;
  return (
    <div class="document">
      <div class="formats" role="group" aria-label="Format">
        <button type="button" aria-pressed={asYAML} disabled={busy} onClick={() => convert(true)}>YAML</button>
        <button type="button" aria-pressed={!asYAML} disabled={busy} onClick={() => convert(false)}>JSON</button>
      </div>
      <Editor name={name} label={label} text={text} set={(t) => (setText(t), setError(undefined))} marks={marks} />
      <Faults marks={marks} error={error} />
      <div class="actions left">
        <button type="button" class="primary" disabled={busy || !!readOnly} onClick={() => attempt(() => save(read()))}>Save</button>
        {readOnly && <span class="faint">{readOnly}</span>}
      </div>
    </div>
  );
}

const firstKind = {
  kind: 'kind',
  name: 'sensor',
  description: 'A sensor and where it hangs',
  schema: { type: 'object', required: ['place'], additionalProperties: false, properties: { place: { type: 'string' }, unit: { enum: ['C', 'F'] } } },
};

export function Kinds() {
  const l = useLive();
  useEffect(() => live.watch('kind', ''), []);
  const kinds = l.list('kind');
  return (
    <>
      <div class="title">
        <h1>Custom resources</h1>
        <a class="button" href={to('kind')}>New kind</a>
      </div>
      {!l.has('kind', '') ? (
        l.error ? <Failure of={l.error} /> : loading
      ) : kinds.length === 0 ? (
        <Empty command="treeline apply -f kind.yaml" docs={how}>No kind of custom resources is defined. <a href={to('kind')}>Define one</a>, or:</Empty>
      ) : (
        <Table<CustomKind>
          label="Kinds"
          rows={kinds}
          id={(k) => k.id}
          columns={[
            { name: 'Kind', of: (k) => <a href={to('kind', k.id)}><T>{k.id}</T></a> },
            { name: 'Resources', number: true, of: (k) => k.resources },
            { name: 'Description', wide: true, of: (k) => <T>{k.description}</T> },
            { name: 'Changed', of: (k) => <Age of={k.changed} /> },
            { name: 'By', wide: true, of: (k) => <T>{k.by}</T> },
          ]}
        />
      )}
    </>
  );
}

export function NewKind({ user }: { user: User }) {
  const tenants = useTenants(user);
  return (
    <>
      <p class="path"><a href={to('kinds')}>Custom resources</a></p>
      <h1>New kind</h1>
      <p class="faint">A kind has a JSON Schema, which its resources satisfy. <a href={how + '#schemas'}>What a schema may have</a></p>
      <TenantChoice of={tenants} what="Kinds" />
      <Document
        value={firstKind}
        label="Kind"
        name="document"
        readOnly={tenants.chosen ? '' : 'There is no tenant.'}
        save={async ({ kind: _, ...body }) => {
          const made: CustomKind = await (await send('POST', '/v1/kinds?tenant=' + encodeURIComponent(tenants.chosen), { body })).json();
          location.hash = to('kind', made.id);
        }}
      />
    </>
  );
}

/** Saves a changed object, unless another one has changed it since it was read. */
async function replace(path: string, revision: number, body: unknown) {
  try {
    await send('PUT', path, { body, headers: { 'If-Match': '"' + revision + '"' } });
  } catch (e) {
    if (e instanceof Refused && e.problem.status === 412) throw new Error('It was changed meanwhile. "Load again" shows the present one and drops your changes.');
    throw e;
  }
}

/** The editor of an object. It keeps what was typed while the object changes, and then says so. */
function Change<O extends { revision: number; by?: string }>({ now, document, path, label }: { now: O; document: (o: O) => object; path: string; label: string }) {
  const [from, setFrom] = useState(now);
  const stale = now.revision !== from.revision;
  return (
    <>
      {stale && (
        <p class="stale" role="status">
          Changed{now.by && <> by <T>{now.by}</T></>} since it was loaded. <button type="button" class="link" onClick={() => setFrom(now)}>Load again</button>
        </p>
      )}
      <Document
        key={from.revision}
        value={document(from)}
        label={label}
        name="document"
        save={async (d) => {
          await replace(path, from.revision, d);
          const saved: O = await get<O>(path);
          setFrom(saved);
        }}
      />
    </>
  );
}

export function KindPage({ id, more }: { id: string; more: string }) {
  const l = useLive();
  useEffect(() => live.watch('kind', ''), []);
  useEffect(() => live.watch('resource', id), [id]);
  const k = l.get('kind', id);
  const resources = l.list('resource').filter((r) => within(r.id, id));
  const path = '/v1/kinds/' + segment(id);
  if (!k)
    return (
      <>
        <p class="path"><a href={to('kinds')}>Custom resources</a></p>
        <h1><T>{short(id)}</T></h1>
        {l.has('kind', '') ? <Empty command="treeline get kinds">There is no such kind.</Empty> : l.error ? <Failure of={l.error} /> : loading}
      </>
    );
  if (more === 'new')
    return (
      <>
        <p class="path"><a href={to('kinds')}>Custom resources</a> ▸ <a href={to('kind', id)}><T>{k.id}</T></a></p>
        <h1>New <T>{k.name}</T></h1>
        <Document
          value={{ kind: k.name, name: '', spec: example(k.schema) }}
          label="Resource"
          name="document"
          save={async (body) => {
            const made: CustomResource = await (await send('POST', '/v1/resources?tenant=' + encodeURIComponent(k.tenant), { body })).json();
            location.hash = to('resource', made.id);
          }}
        />
        <details>
          <summary>Schema</summary>
          <pre class="output" tabIndex={0}>{clean(JSON.stringify(k.schema, undefined, 2))}</pre>
        </details>
      </>
    );
  return (
    <>
      <p class="path"><a href={to('kinds')}>Custom resources</a></p>
      <div class="title">
        <h1><T>{k.name}</T></h1>
        <a class="button" href={to('kind', id, 'new')}>New resource</a>
        <Dangerous name="Delete" title={'Delete the kind ' + clean(k.name) + '?'} act={() => send('DELETE', path + '?force=true', { headers: { 'If-Match': '*' } })}>
          <p>It deletes the kind with its {count(k.resources, 'resource')}. Programs that use them lose them.</p>
        </Dangerous>
      </div>
      <dl class="facts">
        <dt>Tenant</dt>
        <dd><T>{k.tenant}</T></dd>
        {k.description && (
          <>
            <dt>Description</dt>
            <dd><T>{k.description}</T></dd>
          </>
        )}
        <dt>Changed</dt>
        <dd><Age of={k.changed} /> ago{k.by && <> by <T>{k.by}</T></>}</dd>
      </dl>
      <h2>Resources</h2>
      {!l.has('resource', id) ? (
        loading
      ) : resources.length === 0 ? (
        <Empty command={'treeline apply -f ' + k.name + '.yaml'} docs={how}>There is no resource of this kind. <a href={to('kind', id, 'new')}>Make one</a>, or:</Empty>
      ) : (
        <Table<CustomResource>
          label="Resources"
          rows={resources}
          id={(r) => r.id}
          columns={[
            { name: 'Name', of: (r) => <a href={to('resource', r.id)}><T>{r.name}</T></a> },
            { name: 'Spec', wide: true, of: (r) => <code class="cut"><T>{JSON.stringify(r.spec).slice(0, 200)}</T></code> },
            { name: 'Changed', of: (r) => <Age of={r.changed} /> },
            { name: 'By', wide: true, of: (r) => <T>{r.by}</T> },
          ]}
        />
      )}
      <h2>Definition</h2>
      <Change<CustomKind>
        key={id}
        now={k}
        label="Kind"
        path={path}
        document={(o) => ({ name: o.name, description: o.description || '', schema: o.schema })}
      />
    </>
  );
}

/** A spec with the properties that the schema demands, to begin with. */
function example(schema: unknown): unknown {
  const s = (schema && typeof schema === 'object' ? schema : {}) as { [k: string]: unknown };
  if ('default' in s) return s.default;
  if ('const' in s) return s.const;
  for (const of of [s.examples, s.enum]) if (Array.isArray(of) && of.length > 0) return of[0];
  const properties = (s.properties || {}) as Record<string, unknown>;
  switch (Array.isArray(s.type) ? s.type[0] : s.type || (s.properties || s.required ? 'object' : '')) {
    case 'string':
      return '';
    case 'number':
    case 'integer':
      return typeof s.minimum === 'number' ? s.minimum : 0;
    case 'boolean':
      return false;
    case 'array':
      return [];
    case 'object':
      return Object.fromEntries((Array.isArray(s.required) ? s.required : []).map((name) => [String(name), example(properties[String(name)] ?? {})]));
  }
  return s.type === 'null' ? null : {};
}

export function ResourcePage({ id }: { id: string }) {
  const l = useLive();
  const kind = kindOf(id);
  useEffect(() => live.watch('resource', kind), [kind]);
  const r = l.get('resource', id);
  const path = '/v1/resources/' + segment(id);
  const events = l.events.filter((e) => e.kind === 'resource' && (e.tenant || '') + '/' + e.object === id).slice(-30).reverse();
  return (
    <>
      <p class="path"><a href={to('kinds')}>Custom resources</a> ▸ <a href={to('kind', kind)}><T>{kind}</T></a></p>
      <div class="title">
        <h1><T>{short(id)}</T></h1>
        {r && (
          <Dangerous name="Delete" title={'Delete ' + clean(short(id)) + '?'} act={() => send('DELETE', path, { headers: { 'If-Match': '*' } })}>
            <p>Programs that use it see that it is gone.</p>
          </Dangerous>
        )}
      </div>
      {!r && (l.has('resource', kind) ? <Empty command={'treeline get ' + clean(short(kind))}>There is no such resource.</Empty> : l.error ? <Failure of={l.error} /> : loading)}
      {r && (
        <>
          <dl class="facts">
            <dt>Tenant</dt>
            <dd><T>{tenantOf(id)}</T></dd>
            <dt>Changed</dt>
            <dd><Age of={r.changed} /> ago{r.by && <> by <T>{r.by}</T></>}</dd>
          </dl>
          <Change<CustomResource> key={id} now={r} label="Resource" path={path} document={(o) => ({ kind: o.kind, name: o.name, spec: o.spec })} />
        </>
      )}
      <h2>Events</h2>
      <EventTable events={events} />
    </>
  );
}
