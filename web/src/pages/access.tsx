import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import type { Cluster, Invitation, JoinToken, PAT, PersonalToken, User as Person } from '../types';
import { get, Page, post, segment, send, serverNow, tier, User } from '../http';
import { may } from '../may';
import { Age, Command, Dangerous, DataAge, Empty, Failure, T, Table, useLive, useLoaded } from '../parts/basics';
import { duration } from '../text';

const refresh = 15_000; // ms

const roles = ['Application_Provider', 'Infrastructure_Provider', 'Organization_Admin', 'Admin'];

function Until({ time }: { time: string }) {
  const left = Date.parse(time) - serverNow();
  return <span title={time}>{left > 0 ? 'in ' + duration(left) : 'expired'}</span>;
}

/** A form that makes something, which is shown once. */
function Maker({ name, make, children, show }: { name: string; make: (f: FormData) => Promise<string>; children: ComponentChildren; show: string }) {
  const [made, setMade] = useState('');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  return (
    <>
      <form
        class="fields"
        onSubmit={async (e) => {
          e.preventDefault();
          const form = e.currentTarget;
          setBusy(true);
          setMade('');
          setError(undefined);
          try {
            setMade(await make(new FormData(form)));
            form.reset();
          } catch (err) {
            setError(err);
          }
          setBusy(false);
        }}
      >
        {children}
        <button type="submit" disabled={busy}>{name}</button>
      </form>
      <Failure of={error} />
      {made && (
        <div role="status">
          <p>{show}</p>
          <Command text={made} />
        </div>
      )}
    </>
  );
}

function field(f: FormData, name: string): string {
  return String(f.get(name) || '').trim();
}

function People({ me }: { me: string }) {
  const people = useLoaded((s) => get<Page<Person>>('/v1/users', s), 'users', refresh);
  return (
    <section aria-label="People">
      <h2>People</h2>
      <Failure of={people.error} />
      {people.value && (
        <Table<Person>
          label="People"
          rows={people.value.items || []}
          id={(u) => u.id}
          columns={[
            { name: 'Name', of: (u) => <T>{u.id}</T> },
            { name: 'Roles', of: (u) => <T>{u.roles.join(', ')}</T> },
            { name: 'State', of: (u) => (u.disabled ? 'disabled' : u.pending ? 'has not signed in' : 'active') },
            { name: 'Created', wide: true, of: (u) => <Age of={u.created} /> },
            {
              name: '', of: (u) => u.id !== me && (
                <Dangerous name="Remove" title={'Remove ' + u.id + '?'} act={async () => (await send('DELETE', '/v1/users/' + segment(u.id)), people.again())}>
                  <p>Its sessions and personal tokens end at once. Its applications stay.</p>
                </Dangerous>
              ),
            },
          ]}
        />
      )}
      <DataAge at={people.at} />
      <Maker
        name="Add person"
        show="The code for the first sign-in, shown once:"
        make={async (f) => {
          const i = await post<Invitation>('/v1/users', { id: field(f, 'person'), roles: [field(f, 'role')] });
          people.again();
          return i.code;
        }}
      >
        <label>Name <input name="person" required placeholder="tenant/name" spellcheck={false} autocapitalize="none" /></label>
        <label>Role <select name="role">{roles.map((r) => <option key={r}>{r}</option>)}</select></label>
      </Maker>
    </section>
  );
}

export function Joins() {
  const clusters = useLive().list('cluster').filter((c: Cluster) => may('joins', c.tenant || ''));
  const own = tier === 'cluster';
  const tokens = useLoaded((s) => get<Page<JoinToken>>('/v1/tokens', s), 'joins', refresh);
  return (
    <section aria-label="Machines that join">
      <h2>Machines that join</h2>
      <Failure of={tokens.error} />
      {tokens.value && (tokens.value.items || []).length > 0 && (
        <Table<JoinToken>
          label="Join tokens"
          rows={tokens.value.items}
          id={(t) => t.id}
          columns={[
            { name: 'Token', of: (t) => <code><T>{t.id}</T></code> },
            { name: 'For', of: (t) => <><T>{t.kind}</T> <T>{t.cluster}</T></> },
            { name: 'Uses left', number: true, of: (t) => t.uses },
            { name: 'Expires', of: (t) => <Until time={t.expires} /> },
            {
              name: '', of: (t) => (
                <Dangerous name="Revoke" title="Revoke the join token?" act={async () => (await send('DELETE', '/v1/tokens/' + segment(t.id)), tokens.again())}>
                  <p>Machines that have joined stay.</p>
                </Dangerous>
              ),
            },
          ]}
        />
      )}
      {tokens.value && (tokens.value.items || []).length === 0 && <Empty command={own ? 'treeline token create --node --cluster NAME' : 'treeline token create --cluster munich'}>No token for a machine that joins is valid.</Empty>}
      <DataAge at={tokens.at} />
      <Maker
        name="Create join token"
        show="Run this as root on the machine that joins. The token is shown once:"
        make={async (f) => {
          const node = own || field(f, 'kind') === 'node';
          const t = await post<JoinToken>('/v1/tokens', {
            ...(own ? {} : { kind: node ? 'node' : 'cluster', cluster: node ? field(f, 'cluster') : field(f, 'name') }),
            uses: Number(field(f, 'uses')),
            ttl_seconds: 3600 * Number(field(f, 'hours')),
          });
          tokens.again();
          return t.command || '';
        }}
      >
        {!own && <label>For a <select name="kind"><option>node</option><option>cluster</option></select></label>}
        {!own && <label>of the cluster <select name="cluster">{clusters.map((c) => <option key={c.id}>{c.id}</option>)}</select></label>}
        {!own && <label>or the new cluster <input name="name" placeholder="munich" spellcheck={false} /></label>}
        <label>Uses <input name="uses" type="number" min="1" value="1" /></label>
        <label>Hours <input name="hours" type="number" min="1" max="720" value="1" /></label>
      </Maker>
    </section>
  );
}

function Tokens({ user }: { user: User }) {
  const tokens = useLoaded((s) => get<Page<PAT>>('/v1/auth/tokens', s), 'tokens', refresh);
  return (
    <section aria-label="Your tokens">
      <h2>Your personal tokens</h2>
      <Failure of={tokens.error} />
      {tokens.value && (tokens.value.items || []).length === 0 && <Empty command="treeline token create --name laptop" docs="/docs/reference/api#sign-in">You have no personal token. Programs use them.</Empty>}
      {tokens.value && (tokens.value.items || []).length > 0 && (
        <Table<PAT>
          label="Personal tokens"
          rows={tokens.value.items}
          id={(t) => t.id}
          columns={[
            { name: 'Name', of: (t) => <T>{t.name}</T> },
            { name: 'Roles', of: (t) => <T>{(t.roles || []).join(', ')}</T> },
            { name: 'Expires', of: (t) => <Until time={t.expires} /> },
            {
              name: '', of: (t) => (
                <Dangerous name="Revoke" title={'Revoke ' + t.name + '?'} act={async () => (await send('DELETE', '/v1/auth/tokens/' + segment(t.id)), tokens.again())}>
                  <p>Programs with this token are refused at once.</p>
                </Dangerous>
              ),
            },
          ]}
        />
      )}
      <DataAge at={tokens.at} />
      <Maker
        name="Create token"
        show="The token, shown once:"
        make={async (f) => {
          const role = field(f, 'role');
          const t = await post<PersonalToken>('/v1/auth/tokens', { name: field(f, 'name'), ttl_seconds: 86_400 * Number(field(f, 'days')), ...(role ? { roles: [role] } : {}) });
          tokens.again();
          return t.token || '';
        }}
      >
        <label>Name <input name="name" required maxLength={100} placeholder="laptop" /></label>
        <label>Role <select name="role"><option value="">all of yours</option>{user.roles.map((r) => <option key={r}>{r}</option>)}</select></label>
        <label>Days <input name="days" type="number" min="1" max="365" value="30" /></label>
      </Maker>
    </section>
  );
}

export function Access({ user }: { user: User }) {
  return (
    <>
      <h1>Access</h1>
      <p class="faint">You are <T>{user.user}</T>, {user.roles.join(', ').replace(/_/g, ' ') || 'without roles'}.</p>
      {may('users') && <People me={user.user} />}
      {may('joins') && <Joins />}
      <Tokens user={user} />
    </>
  );
}
