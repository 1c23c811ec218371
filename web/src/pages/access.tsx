import { useState } from 'preact/hooks';
import type { Invitation, JoinToken, PAT, PersonalToken, Tenant, User as Person } from '../types';
import { changePassword, get, Page, post, segment, send, serverNow, tier, User } from '../http';
import { may } from '../may';
import { Age, Command, Dangerous, DataAge, Empty, Failure, T, Table, useLoaded } from '../parts/basics';
import { JoinForm } from '../parts/join';
import { field, Maker } from '../parts/maker';
import { clean, duration } from '../text';

const refresh = 15_000; // ms

const roles = ['Application_Provider', 'Infrastructure_Provider', 'Organization_Admin', 'Admin'];

export function Until({ time, bare }: { time: string; bare?: boolean }) {
  const left = Date.parse(time) - serverNow();
  return <span title={time}>{left > 0 ? (bare ? '' : 'in ') + duration(left) : 'expired'}</span>;
}

/** A person's roles, and whether the person may sign in. */
function Rights({ of: u, done }: { of: Person; done: () => void }) {
  return (
    <Dangerous
      name="Change" title={'Rights of ' + clean(u.id)} plain
      act={async (f) => (await send('PUT', '/v1/users/' + segment(u.id), { body: { email: u.email, disabled: f.get('disabled') !== null, roles: f.getAll('roles') } }), done())}
    >
      <fieldset>
        <legend>Roles</legend>
        {roles.map((r) => <label key={r}><input type="checkbox" name="roles" value={r} defaultChecked={u.roles.includes(r)} /> {r.replace(/_/g, ' ')}</label>)}
      </fieldset>
      <label><input type="checkbox" name="disabled" defaultChecked={!!u.disabled} /> Disabled: may not sign in</label>
      <p class="faint">It takes effect at once, for open sessions and personal tokens too.</p>
    </Dangerous>
  );
}

function People({ me }: { me: string }) {
  const people = useLoaded((s) => get<Page<Person>>('/v1/users', s), 'users', refresh, 'user');
  const [reset, setReset] = useState<Invitation | undefined>();
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
            { name: 'Roles', of: (u) => <T>{u.roles.join(', ').replace(/_/g, ' ')}</T> },
            { name: 'State', of: (u) => (u.disabled ? 'disabled' : u.pending ? 'has not signed in' : 'active') },
            { name: 'Created', wide: true, of: (u) => <><Age of={u.created} /> ago</> },
            {
              name: '', of: (u) => u.id !== me && (
                <span class="buttons">
                  <Rights of={u} done={people.again} />{' '}
                  <Dangerous name="Reset password" title={'Reset the password of ' + clean(u.id) + '?'} plain act={async () => setReset(await post<Invitation>('/v1/users/' + segment(u.id) + '/invite'))}>
                    <p>It makes a code, with which {clean(u.id)} sets a new password. The present password works until then.</p>
                  </Dangerous>{' '}
                  <Dangerous name="Remove" title={'Remove ' + clean(u.id) + '?'} act={async () => (await send('DELETE', '/v1/users/' + segment(u.id)), people.again())}>
                    <p>Its sessions and personal tokens end at once. Its applications stay.</p>
                  </Dangerous>
                </span>
              ),
            },
          ]}
        />
      )}
      <DataAge at={people.at} />
      {reset && (
        <div role="status" class="made">
          <p>The code for <T>{reset.user}</T> to set a new password, shown once. It is entered with "I have a sign-in code", within <Until time={reset.expires} bare />:</p>
          <Command text={reset.code} />
        </div>
      )}
      <Maker
        name="Add person"
        show="The code for the first sign-in, shown once. It is entered with &quot;I have a sign-in code&quot;:"
        make={async (f) => {
          const i = await post<Invitation>('/v1/users', { id: field(f, 'person'), roles: [field(f, 'role')] });
          people.again();
          return i.code;
        }}
      >
        <label>Name <input name="person" required placeholder="tenant/name" spellcheck={false} autocapitalize="none" /></label>
        <label>Role <select name="role">{roles.map((r) => <option key={r} value={r}>{r.replace(/_/g, ' ')}</option>)}</select></label>
      </Maker>
    </section>
  );
}

function Tenants() {
  const tenants = useLoaded((s) => get<Page<Tenant>>('/v1/tenants', s), 'tenants', refresh, 'tenant user');
  const rows = (tenants.value?.items || []).filter((t) => t.path);
  return (
    <section aria-label="Tenants">
      <h2>Tenants</h2>
      <Failure of={tenants.error} />
      {tenants.value && rows.length === 0 && <Empty command="treeline tenant create acme">No tenant exists. Applications and people belong to one.</Empty>}
      {rows.length > 0 && (
        <Table<Tenant>
          label="Tenants"
          rows={rows}
          id={(t) => t.path}
          columns={[
            { name: 'Path', of: (t) => <T>{t.path}</T> },
            { name: 'Title', of: (t) => <T>{t.title}</T> },
            { name: 'Created', wide: true, of: (t) => <><Age of={t.created} /> ago</> },
            {
              name: '', of: (t) => (
                <Dangerous name="Remove" title={'Remove ' + clean(t.path) + '?'} act={async () => (await send('DELETE', '/v1/tenants/' + segment(t.path)), tenants.again())}>
                  <p>It must have no people, applications, clusters or other objects.</p>
                </Dangerous>
              ),
            },
          ]}
        />
      )}
      <DataAge at={tenants.at} />
      <Maker
        name="Add tenant"
        show="The tenant is there:"
        make={async (f) => {
          const t = await post<Tenant>('/v1/tenants', { path: field(f, 'path'), ...(field(f, 'title') ? { title: field(f, 'title') } : {}) });
          tenants.again();
          return t.path;
        }}
      >
        <label>Path <input name="path" required placeholder="acme or acme/team" spellcheck={false} autocapitalize="none" /></label>
        <label>Title <input name="title" placeholder="optional" /></label>
      </Maker>
    </section>
  );
}

/** Changes the user's own password. It ends all sessions, so that the page signs in again. */
function Password({ user }: { user: string }) {
  const [error, setError] = useState<unknown>();
  const [changed, setChanged] = useState(false);
  return (
    <section aria-label="Your password">
      <h2>Your password</h2>
      <form
        class="fields"
        onSubmit={async (e) => {
          e.preventDefault();
          const form = e.currentTarget;
          const f = new FormData(form);
          const password = String(f.get('new-password'));
          setChanged(false);
          setError(undefined);
          try {
            await changePassword(user, String(f.get('old-password')), password);
            setChanged(true);
            form.reset();
          } catch (err) {
            setError(err);
          }
        }}
      >
        <input type="hidden" autocomplete="username" value={user} />
        <label>Present one <input name="old-password" type="password" autocomplete="current-password" required /></label>
        <label>New one <input name="new-password" type="password" autocomplete="new-password" required /></label>
        <button type="submit">Change password</button>
        <p class="faint broad">Other sessions and all personal tokens of yours end.</p>
      </form>
      <Failure of={error} />
      {changed && <p role="status">The password is changed.</p>}
    </section>
  );
}

export function Joins() {
  const own = tier === 'cluster';
  const tokens = useLoaded((s) => get<Page<JoinToken>>('/v1/tokens', s), 'joins', refresh, 'token cluster');
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
            { name: 'Uses left', number: true, wide: true, of: (t) => t.uses },
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
      <JoinForm made={tokens.again} />
    </section>
  );
}

function Tokens({ user }: { user: User }) {
  const tokens = useLoaded((s) => get<Page<PAT>>('/v1/auth/tokens', s), 'tokens', refresh, 'token');
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
            { name: 'Roles', of: (t) => <T>{(t.roles || []).join(', ').replace(/_/g, ' ')}</T> },
            { name: 'Expires', of: (t) => <Until time={t.expires} /> },
            {
              name: '', of: (t) => (
                <Dangerous name="Revoke" title={'Revoke ' + clean(t.name) + '?'} act={async () => (await send('DELETE', '/v1/auth/tokens/' + segment(t.id)), tokens.again())}>
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
          const chosen = f.getAll('token-roles');
          const t = await post<PersonalToken>('/v1/auth/tokens', { name: field(f, 'name'), ttl_seconds: 86_400 * Number(field(f, 'days')), ...(chosen.length > 0 ? { roles: chosen } : {}) });
          tokens.again();
          return t.token || '';
        }}
      >
        <label>Name <input name="name" required maxLength={100} placeholder="laptop" /></label>
        <fieldset>
          <legend>Roles; none: all of yours</legend>
          {user.roles.map((r) => <label key={r}><input type="checkbox" name="token-roles" value={r} /> {r.replace(/_/g, ' ')}</label>)}
        </fieldset>
        <label>Valid for days <input name="days" type="number" min="1" max="365" required defaultValue="30" /></label>
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
      {may('users') && <Tenants />}
      <Password user={user.user} />
    </>
  );
}
