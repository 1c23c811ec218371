import { useState } from 'preact/hooks';
import type { OperatorToken } from '../../types';
import { get, Page, post, segment, send } from '../../http';
import { Age, Dangerous, DataAge, Empty, Failure, T, Table, useLoaded } from '../../parts/basics';
import { field, Maker } from '../../parts/maker';
import { clean } from '../../text';
import { Joins, Until } from '../access';

const refresh = 15_000; // ms

/** Further operators of the cluster, whom only its own token may name. */
function Operators() {
  const tokens = useLoaded((s) => get<Page<OperatorToken>>('/v1/operators', s), 'operators', refresh);
  const rows = tokens.value?.items || [];
  return (
    <>
      <Failure of={tokens.error} />
      {tokens.value && rows.length === 0 && <Empty command="treeline token create --operator night">No other operator has a token.</Empty>}
      {rows.length > 0 && (
        <Table<OperatorToken>
          label="Operators"
          rows={rows}
          id={(t) => t.name}
          columns={[
            { name: 'Name', of: (t) => <T>{t.name}</T> },
            { name: 'Roles', of: (t) => <T>{t.roles.join(', ').replace(/_/g, ' ')}</T> },
            { name: 'Expires', of: (t) => <Until time={t.expires} /> },
            { name: 'Created', wide: true, of: (t) => <><Age of={t.created} /> ago</> },
            {
              name: '', of: (t) => (
                <Dangerous name="Revoke" title={'Revoke the token of ' + clean(t.name) + '?'} act={async () => (await send('DELETE', '/v1/operators/' + segment(t.name)), tokens.again())}>
                  <p>What is open with it ends, and join tokens that were created with it are revoked. Machines that have joined stay.</p>
                </Dangerous>
              ),
            },
          ]}
        />
      )}
      <DataAge at={tokens.at} />
      <Maker
        name="Create operator token"
        show="The token, shown once. Its holder signs in here with it:"
        make={async (f) => {
          const t = await post<OperatorToken>('/v1/operators', { name: field(f, 'operator'), roles: [field(f, 'role')], ttl_seconds: 86_400 * Number(field(f, 'days')) });
          tokens.again();
          return t.token || '';
        }}
      >
        <label>Name <input name="operator" required placeholder="night" spellcheck={false} autocapitalize="none" /></label>
        <label>
          May
          <select name="role">
            <option value="Infrastructure_Provider">work on nodes</option>
            <option value="Admin">also read logs and run terminals</option>
          </select>
        </label>
        <label>Valid for days <input name="days" type="number" min="1" max="365" required defaultValue="1" /></label>
      </Maker>
    </>
  );
}

export function OwnAccess() {
  const [opened, open] = useState(false);
  return (
    <>
      <h1>Access</h1>
      <Joins />
      <section aria-label="Operators">
        <h2>Operators</h2>
        <p class="faint">Named tokens for further operators, with an end. Only the cluster's own token may make them.</p>
        {opened ? <Operators /> : <button type="button" onClick={() => open(true)}>Show operators</button>}
      </section>
    </>
  );
}
