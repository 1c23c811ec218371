// Where an object is made: in the user's tenant, or in one that is chosen.
import { useEffect, useState } from 'preact/hooks';
import type { Tenant } from '../types';
import { get, Page, User } from '../http';
import { Empty, Failure } from './basics';
import { clean } from '../text';

export interface Tenants {
  all: string[];
  chosen: string;
  choose: (t: string) => void;
  error?: unknown;
}

export function useTenants(user: User): Tenants {
  const [all, setAll] = useState<string[]>(user.tenant ? [user.tenant] : []);
  const [chosen, choose] = useState(user.tenant);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    get<Page<Tenant>>('/v1/tenants').then((p) => {
      const found = p.items.map((t) => t.path).filter((t) => t);
      setAll(found);
      if (!chosen && found.length > 0) choose(found[0]);
    }, setError);
  }, []);
  return { all, chosen, choose, error };
}

export function TenantChoice({ of, what }: { of: Tenants; what: string }) {
  return (
    <>
      <Failure of={of.error} />
      {of.all.length === 0 && !of.error && <Empty command="treeline tenant create acme">No tenant exists yet. {what} belong to one.</Empty>}
      {of.all.length > 1 && (
        <label class="filter">
          Tenant{' '}
          <select name="tenant" value={of.chosen} onChange={(e) => of.choose(e.currentTarget.value)}>
            {of.all.map((t) => <option key={t} value={t}>{clean(t)}</option>)}
          </select>
        </label>
      )}
    </>
  );
}
