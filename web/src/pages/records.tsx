// Who did what: the records of operations that the root keeps.
import { useState } from 'preact/hooks';
import type { Event } from '../types';
import { list } from '../http';
import { DataAge, Failure, useLoaded } from '../parts/basics';
import { RecordTable } from '../parts/events';

const shown = 500;
const refresh = 20_000; // ms; each record is an event of the stream

export function Records() {
  const all = useLoaded(() => list<Event>('/v1/events?users=true&tail=' + shown, shown), 'records', refresh, '*');
  const [user, setUser] = useState('');
  const [object, setObject] = useState('');
  const has = (text: string | undefined, part: string) => !part || (text || '').toLowerCase().includes(part.toLowerCase());
  const rows = all.value?.items || [];
  const found = rows.filter((e) => has(e.by, user) && has(e.kind + ' ' + (e.tenant ? e.tenant + '/' : '') + e.object, object));
  return (
    <>
      <h1>Who did what</h1>
      <p class="faint">What users did or were refused, as far as you may see it. A cluster keeps the records of its own port: they are on the page of the cluster.</p>
      <div class="asked">
        <label class="filter">User <input type="search" name="user" value={user} onInput={(e) => setUser(e.currentTarget.value)} placeholder="acme/dora" spellcheck={false} autocapitalize="none" /></label>
        <label class="filter">Object <input type="search" name="object" value={object} onInput={(e) => setObject(e.currentTarget.value)} placeholder="secret acme/db" spellcheck={false} autocapitalize="none" /></label>
        {all.value && <span class="faint">{found.length} of the newest {rows.length}</span>}
      </div>
      <Failure of={all.error} />
      {all.value && <RecordTable events={[...found].reverse()} empty={rows.length > 0 ? 'No record matches.' : 'No record is kept.'} />}
      <DataAge at={all.at} />
    </>
  );
}
