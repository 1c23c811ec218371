import { useEffect, useState } from 'preact/hooks';
import type { App, Applied, Plan, Tenant } from '../types';
import { linksOf, parse, servicesAlone, withLink } from '../document';
import { get, Page, segment, send, User } from '../http';
import { Editor, Faults, marksOf } from '../parts/editor';
import { Empty, Failure, T } from '../parts/basics';
import { Graph } from '../parts/graph';
import { PlanView } from '../parts/plan';
import { to } from '../route';
import { short } from '../text';

/** The largest file, in bytes, as for the root. */
const largest = 1 << 20;

const start = `{
  "sla_version": "v2.0",
  "applications": [
    {
      "application_name": "hello",
      "application_namespace": "prod",
      "microservices": []
    }
  ]
}
`;

/** Adds the service of the form to the text. */
function withService(text: string, form: FormData): string {
  const field = (name: string) => String(form.get(name) || '').trim();
  const d = parse(text) || JSON.parse(start);
  const app = d.applications[0];
  const service: Record<string, unknown> = {
    microservice_name: field('service'),
    microservice_namespace: app.application_namespace || 'prod',
    virtualization: field('virtualization'),
    code: field('code'),
    memory: Number(field('memory')),
    vcpus: Number(field('vcpus')),
    replicas: Number(field('replicas')),
  };
  if (field('cmd')) service.cmd = field('cmd').split(/\s+/);
  app.microservices = [...app.microservices.filter((m: { microservice_name: string }) => m.microservice_name !== service.microservice_name), service];
  return JSON.stringify(d, undefined, 2) + '\n';
}

function Form({ text, set }: { text: string; set: (text: string) => void }) {
  const d = parse(text);
  const app = (d?.applications[0] || {}) as { application_name?: string; application_namespace?: string };
  const rename = (key: string, value: string) => {
    if (!d) return;
    (d.applications[0] as unknown as Record<string, string>)[key] = value;
    set(JSON.stringify(d, undefined, 2) + '\n');
  };
  return (
    <details open>
      <summary>Form</summary>
      {!d ? (
        <p class="faint">The form and the drawing change SLAs in JSON.</p>
      ) : (
        <form
          class="fields"
          onSubmit={(e) => {
            e.preventDefault();
            set(withService(text, new FormData(e.currentTarget)));
          }}
        >
          <label>Application <input name="application" value={app.application_name} onInput={(e) => rename('application_name', e.currentTarget.value)} spellcheck={false} /></label>
          <label>Namespace <input name="namespace" value={app.application_namespace} onInput={(e) => rename('application_namespace', e.currentTarget.value)} spellcheck={false} /></label>
          <label>Service <input name="service" required pattern="[a-zA-Z0-9\-]{1,30}" placeholder="web" spellcheck={false} /></label>
          <label>
            Runs as
            <select name="virtualization">
              <option>container</option>
              <option>process</option>
              <option>microvm</option>
              <option>unikernel</option>
            </select>
          </label>
          <label class="broad">Image or program <input name="code" required placeholder="docker.io/library/nginx:1.27" spellcheck={false} /></label>
          <label class="broad">Command <input name="cmd" placeholder="as the image says" spellcheck={false} /></label>
          <label>Memory, MiB <input name="memory" type="number" min="0" value="64" /></label>
          <label>Processors <input name="vcpus" type="number" min="0" step="any" value="0.1" /></label>
          <label>Replicas <input name="replicas" type="number" min="0" value="1" /></label>
          <button type="submit">Add service</button>
        </form>
      )}
    </details>
  );
}

function Links({ text, set }: { text: string; set: (text: string) => void }) {
  const [ends, setEnds] = useState<string[]>([]);
  const [ms, setMs] = useState(20);
  const services = parse(text)?.applications[0]?.microservices || [];
  if (services.length < 2) return null;
  const names = services.map((s) => String(s.microservice_name));
  const links = linksOf(services);
  const [from, target] = [ends[0] || names[0], ends[1] || names.find((n) => n !== (ends[0] || names[0]))!];
  return (
    <section>
      <h2>Links</h2>
      <Graph
        services={names.map((name) => ({ name }))}
        links={links}
        chosen={ends}
        pick={(n) => setEnds(ends.length === 1 && ends[0] !== n ? [ends[0], n] : [n])}
      />
      <form
        class="fields"
        onSubmit={(e) => {
          e.preventDefault();
          if (from !== target) set(withLink(text, from, target, ms));
          setEnds([]);
        }}
      >
        <label>From <select value={from} onChange={(e) => setEnds([e.currentTarget.value, target])}>{names.map((n) => <option key={n}>{n}</option>)}</select></label>
        <label>To <select value={target} onChange={(e) => setEnds([from, e.currentTarget.value])}>{names.map((n) => <option key={n}>{n}</option>)}</select></label>
        <label>At most, ms <input name="ms" type="number" min="1" max="60000" value={ms} onInput={(e) => setMs(e.currentTarget.valueAsNumber)} /></label>
        <button type="submit" disabled={from === target || !(ms > 0)}>Link</button>
      </form>
      {links.length > 0 && (
        <ul class="plain">
          {links.map((l) => (
            <li key={l.from + l.to}>
              <T>{l.from}</T> → <T>{l.to}</T> ≤ {l.ms} ms{' '}
              <button type="button" class="link" onClick={() => set(withLink(text, l.from, l.to, undefined))}>Remove</button>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** The application that gets the services of a document without one, and a file as the document's text. */
function Source({ alone, id, tenant, into, setInto, set }: { alone: boolean; id: string; tenant: string; into: string; setInto: (name: string) => void; set: (text: string) => void }) {
  const [apps, setApps] = useState<string[]>([]);
  const [fault, setFault] = useState<unknown>();
  useEffect(() => {
    if (alone && !id && tenant) get<Page<App>>('/v1/apps?tenant=' + encodeURIComponent(tenant)).then((p) => setApps(p.items.filter((a) => a.id.startsWith(tenant + '/')).map((a) => short(a.id))), () => setApps([]));
  }, [alone, id, tenant]);
  const open = async (file: File | undefined) => {
    setFault(file && file.size > largest ? new Error(`${file.name} has ${file.size} bytes, want at most ${largest}`) : undefined);
    if (file && file.size <= largest) set(await file.text());
  };
  return (
    <>
      <label class="filter">File <input name="file" type="file" accept=".json,.yaml,.yml" onChange={(e) => open(e.currentTarget.files?.[0])} /></label>
      <Failure of={fault} />
      {alone && id && <p>The services are added to <T>{short(id)}</T>, or replace those of the same name.</p>}
      {alone && !id && (
        <label class="filter">
          Application that gets the services{' '}
          <input name="into" list="apps" required placeholder="shop.prod, new or not" value={into} onInput={(e) => setInto(e.currentTarget.value.trim())} spellcheck={false} />
          <datalist id="apps">{apps.map((a) => <option key={a} value={a} />)}</datalist>
        </label>
      )}
    </>
  );
}

export function Deploy({ id, user }: { id: string; user: User }) {
  const [text, setText] = useState(id ? '' : start);
  const [tenant, setTenant] = useState(user.tenant);
  const [tenants, setTenants] = useState<string[]>(user.tenant ? [user.tenant] : []);
  const [plan, setPlan] = useState<Plan | undefined>();
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState('');
  const [into, setInto] = useState('');
  const alone = servicesAlone(text);
  const set = (t: string) => {
    setText(t);
    setPlan(undefined);
    setError(undefined);
  };
  useEffect(() => {
    get<Page<Tenant>>('/v1/tenants').then((p) => {
      const all = p.items.map((t) => t.path).filter((t) => t);
      setTenants(all);
      if (!tenant && all.length > 0) setTenant(id ? id.slice(0, id.lastIndexOf('/')) : all[0]);
    }, setError);
  }, []);
  useEffect(() => {
    if (id) get<unknown>('/v1/apps/' + segment(id) + '/sla').then((d) => set(JSON.stringify(d, undefined, 2) + '\n'), setError);
  }, [id]);
  const act = async (what: 'plan' | 'apply') => {
    setBusy(what);
    setError(undefined);
    let query = '?tenant=' + encodeURIComponent(tenant);
    const app = id ? id.slice(id.lastIndexOf('/') + 1) : into;
    if (alone && app) query += '&application=' + encodeURIComponent(app);
    const type = /^\s*\{/.test(text) ? 'application/json' : 'application/yaml';
    try {
      if (what === 'plan') setPlan(await (await send('POST', '/v1/apps:plan' + query, { text, type })).json());
      else {
        const done: Applied = await (await send('PUT', '/v1/apps' + query, { text, type })).json();
        location.hash = done.apps.length === 1 ? to('app', done.apps[0].id) : to('apps');
      }
    } catch (e) {
      setPlan(undefined);
      setError(e);
    }
    setBusy('');
  };
  const marks = marksOf(text, error);
  return (
    <>
      <h1>{id ? <>Change <T>{short(id)}</T></> : 'Deploy'}</h1>
      {tenants.length === 0 && !error && <Empty command="treeline tenant create acme">No tenant exists yet. Applications belong to one.</Empty>}
      <div class="deploy">
        <div>
          {tenants.length > 1 && (
            <label class="filter">
              Tenant{' '}
              <select name="tenant" value={tenant} onChange={(e) => setTenant(e.currentTarget.value)}>
                {tenants.map((t) => <option key={t}>{t}</option>)}
              </select>
            </label>
          )}
          <Form text={text} set={set} />
          <Links text={text} set={set} />
        </div>
        <div>
          <h2>SLA, in JSON or YAML</h2>
          <p>
            <a href="/docs/reference/sla">All fields</a>
          </p>
          <Source alone={alone} id={id} tenant={tenant} into={into} setInto={setInto} set={set} />
          <Editor text={text} set={set} marks={marks} />
          <div class="actions left">
            <button type="button" onClick={() => act('plan')} disabled={busy !== '' || !tenant}>Plan</button>
            <button type="button" class="primary" onClick={() => act('apply')} disabled={busy !== '' || !tenant}>Apply</button>
          </div>
          <Faults marks={marks} error={error} />
          {plan && <PlanView plan={plan} />}
        </div>
      </div>
    </>
  );
}
