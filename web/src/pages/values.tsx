// Secrets and configs: their names, versions and users. The pages never show values.
import { useState } from 'preact/hooks';
import type { Values } from '../types';
import { get, list, Refused, segment, send, User } from '../http';
import { may } from '../may';
import { Age, Dangerous, DataAge, Empty, Failure, T, Table, useLoaded } from '../parts/basics';
import { TenantChoice, useTenants } from '../parts/tenant';
import { to } from '../route';
import { bytes, clean, short } from '../text';

const refresh = 20_000; // ms; each change has an event
const how = '/docs/how-to/secrets';

function base64(text: string): string {
  return btoa(Array.from(new TextEncoder().encode(text), (b) => String.fromCharCode(b)).join(''));
}

/** A form with keys and values, which it forgets when they are saved. */
function Form({ names, named, name, save }: { names: string[]; named?: boolean; name: string; save: (name: string, data: Record<string, string>) => Promise<unknown> }) {
  const first = names.length > 0 ? names : ['value'];
  const [keys, setKeys] = useState(() => first.map((key, id) => ({ id, key, value: '' })));
  const [object, setObject] = useState('');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [saved, setSaved] = useState(false);
  const change = (id: number, to: { key?: string; value?: string }) => (setSaved(false), setKeys(keys.map((k) => (k.id === id ? { ...k, ...to } : k))));
  return (
    <form
      autocomplete="off"
      onSubmit={async (e) => {
        e.preventDefault();
        setBusy(true);
        setError(undefined);
        try {
          if (new Set(keys.map((k) => k.key.trim())).size < keys.length) throw new Error('Two keys have the same name.');
          await save(object.trim(), Object.fromEntries(keys.map((k) => [k.key.trim(), base64(k.value)])));
          setKeys(keys.map((k) => ({ ...k, value: '' })));
          setSaved(true);
        } catch (err) {
          setError(err);
        }
        setBusy(false);
      }}
    >
      {named && <label>Name <input name="object" required maxLength={63} value={object} onInput={(e) => setObject(e.currentTarget.value)} placeholder="db-password" spellcheck={false} autocapitalize="none" /></label>}
      {keys.map((k, n) => (
        <div class="value" key={k.id} role="group" aria-label={'Key ' + (n + 1)}>
          <label>Key <input name={'key' + n} required value={k.key} onInput={(e) => change(k.id, { key: e.currentTarget.value })} spellcheck={false} autocapitalize="none" /></label>
          <label>Value <textarea name={'value' + n} required rows={1} value={k.value} onInput={(e) => change(k.id, { value: e.currentTarget.value })} spellcheck={false} autocapitalize="none" autocomplete="off" /></label>
          <button type="button" disabled={keys.length === 1} onClick={() => setKeys(keys.filter((o) => o.id !== k.id))}>Remove key</button>
        </div>
      ))}
      <Failure of={error} />
      <div class="actions left">
        <button type="button" onClick={() => setKeys([...keys, { id: Math.max(...keys.map((k) => k.id)) + 1, key: '', value: '' }])}>Add key</button>
        <button type="submit" class="primary" disabled={busy}>{name}</button>
        {saved && <span role="status" class="good">Saved</span>}
      </div>
    </form>
  );
}

function New({ user, done }: { user: User; done: () => void }) {
  const tenants = useTenants(user);
  const [kind, setKind] = useState('secret');
  return (
    <section aria-label="New secret or config">
      <h2>New</h2>
      <TenantChoice of={tenants} what="Secrets and configs" />
      <label class="filter">
        Kind{' '}
        <select name="kind" value={kind} onChange={(e) => setKind(e.currentTarget.value)}>
          <option value="secret">secret: the API never returns its values</option>
          <option value="config">config: its readers see its values</option>
        </select>
      </label>
      <Form
        named names={[]} name="Create"
        save={async (name, data) => (await send('POST', '/v1/' + kind + 's?tenant=' + encodeURIComponent(tenants.chosen), { body: { name, data } }), done())}
      />
      <p class="faint">Files and credentials of registries: <code>treeline create secret NAME --from-file KEY=FILE</code></p>
    </section>
  );
}

export function ValuesLists({ user }: { user: User }) {
  const all = useLoaded(async () => (await Promise.all([list<Values>('/v1/secrets'), list<Values>('/v1/configs')])).flatMap((p) => p.items), 'values', refresh, 'secret config');
  const rows = all.value || [];
  return (
    <>
      <h1>Secrets and configs</h1>
      <Failure of={all.error} />
      {all.value && rows.length === 0 && <Empty command="treeline create secret db-password --from-file value=FILE" docs={how}>No secret or config exists. Create one below, or:</Empty>}
      {rows.length > 0 && (
        <Table<Values>
          label="Secrets and configs"
          rows={rows}
          id={(v) => v.kind + ' ' + v.id}
          columns={[
            { name: 'Name', of: (v) => <a href={to(v.kind, v.id)}><T>{v.id}</T></a> },
            { name: 'Kind', of: (v) => <>{v.kind}{v.registry && <span class="faint"> for <T>{v.registry}</T></span>}</> },
            { name: 'Version', number: true, of: (v) => v.version },
            { name: 'Keys', wide: true, of: (v) => <T>{v.keys.map((k) => k.name).join(', ')}</T> },
            { name: 'Used by', of: (v) => (v.services || []).slice(0, 8).map((s) => <div key={s}><a href={to('service', s)}><T>{short(s)}</T></a></div>) },
            { name: 'Changed', of: (v) => <Age of={v.changed} /> },
            { name: 'By', wide: true, of: (v) => <T>{v.by}</T> },
          ]}
        />
      )}
      <DataAge at={all.at} />
      {may('apps') && <New user={user} done={all.again} />}
    </>
  );
}

/** The form of the next version. A version that another user saves while this one types is not overwritten. */
function Change({ now, path, again }: { now: Shown; path: string; again: () => void }) {
  const [from, setFrom] = useState(now);
  const [loads, setLoads] = useState(0);
  return (
    <section aria-label="New version">
      <h2>New version</h2>
      <p class="faint">It has these keys only, and replaces all values. Running instances get it as <code>on_change</code> of their files says.</p>
      {now.revision !== from.revision && (
        <p class="stale" role="status">
          Changed{now.by && <> by <T>{now.by}</T></>} since it was loaded. <button type="button" class="link" onClick={() => (setFrom(now), setLoads(loads + 1))}>Load again</button>
        </p>
      )}
      <Form
        key={loads} names={from.keys.map((k) => k.name)} name="Save"
        save={async (_, data) => {
          await send('PUT', path, { body: { data, ...(from.type ? { type: from.type } : {}) }, headers: { 'If-Match': '"' + from.revision + '"' } });
          setFrom(await shown(path));
          again();
        }}
      />
    </section>
  );
}

/** What the pages show of a secret or config: all but the values, which the answer for a config has. */
type Shown = Omit<Values, 'data'>;

async function shown(path: string, signal?: AbortSignal): Promise<Shown> {
  const { data: _, ...rest } = await get<Values>(path, signal);
  return rest;
}

/** One secret or config. It takes only what the page needs of the answer, which has the values of configs. */
export function ValuesPage({ kind, id }: { kind: string; id: string }) {
  const path = '/v1/' + kind + 's/' + segment(id);
  const now = useLoaded((s) => shown(path, s), path, refresh, 'secret config');
  const v = now.value;
  const gone = now.error instanceof Refused && now.error.problem.status === 404;
  const used = v?.services || [];
  return (
    <>
      <p class="path"><a href={to('values')}>Secrets and configs</a></p>
      <div class="title">
        <h1><T>{short(id)}</T></h1>
        {v && !gone && may('apps', v.tenant) && (
          <Dangerous
            name="Delete" title={'Delete the ' + kind + ' ' + clean(id) + '?'}
            act={async (f) => (await send('DELETE', path + (f.get('force') ? '?force=true' : ''), { headers: { 'If-Match': '*' } }), now.again())}
          >
            {used.length > 0 ? (
              <>
                <p>These services use it: <T>{used.map(short).join(', ')}</T>. Their instances have no value when they start again.</p>
                <label><input type="checkbox" name="force" required /> Delete it although it is used</label>
              </>
            ) : (
              <p>No service uses it.</p>
            )}
          </Dangerous>
        )}
      </div>
      {gone ? <Empty command={'treeline get ' + kind + 's'}>There is no such {kind}.</Empty> : <Failure of={now.error} />}
      {v && !gone && (
        <>
          <dl class="facts">
            <dt>Kind</dt>
            <dd>{kind}{v.registry && <> for the registry <T>{v.registry}</T></>}</dd>
            <dt>Tenant</dt>
            <dd><T>{v.tenant}</T></dd>
            <dt>Version</dt>
            <dd>{v.version}</dd>
            <dt>Changed</dt>
            <dd><Age of={v.changed} /> ago{v.by && <> by <T>{v.by}</T></>}</dd>
            <dt>Keys</dt>
            <dd>{v.keys.map((k) => <div key={k.name}><code><T>{k.name}</T></code> <span class="faint">{bytes(k.bytes)}</span></div>)}</dd>
            <dt>Used by</dt>
            <dd>{used.length === 0 ? <span class="faint">no service</span> : used.map((s) => <div key={s}><a href={to('service', s)}><T>{short(s)}</T></a></div>)}</dd>
          </dl>
          <DataAge at={now.at} />
          {may('apps', v.tenant) && !v.registry && <Change now={v} path={path} again={now.again} />}
          {v.registry && <Empty command={'treeline create secret ' + short(id) + ' --replace --registry ' + v.registry + ' --username NAME --password-file FILE'}>Credentials of a registry are replaced with:</Empty>}
        </>
      )}
    </>
  );
}
