// Webhooks: what they send, the state of delivery, and the events that were not delivered.
import type { DeadLetter, Webhook } from '../types';
import { get, list, post, Refused, segment, send, User } from '../http';
import { may } from '../may';
import { Age, Dangerous, DataAge, Empty, Failure, State, T, Table, useLoaded } from '../parts/basics';
import { field, Maker } from '../parts/maker';
import { TenantChoice, useTenants } from '../parts/tenant';
import { to } from '../route';
import { clean, count } from '../text';

// Each event may be delivered at once, and each failure that lasts has one. The times of tries between them have none.
const refresh = 20_000; // ms
const how = '/docs/how-to/webhooks';

function Condition({ of: w }: { of: Webhook }) {
  return w.error ? <State of="failed" note={w.tries ? count(w.tries, 'try').replace('trys', 'tries') : undefined} /> : <State of="active" />;
}

function what(w: Webhook): string {
  return [w.kinds?.length ? w.kinds.join(', ') : 'all kinds', w.reasons?.length ? 'with ' + w.reasons.join(', ') : ''].filter(Boolean).join(' ');
}

function New({ user, done }: { user: User; done: () => void }) {
  const tenants = useTenants(user);
  const words = (f: FormData, name: string) => field(f, name).split(/[\s,]+/).filter(Boolean);
  return (
    <section aria-label="New webhook">
      <h2>New webhook</h2>
      <TenantChoice of={tenants} what="Webhooks" />
      <Maker
        name="Create webhook"
        show="The secret that signs what it sends, shown once:"
        make={async (f) => {
          const w = await post<Webhook>('/v1/webhooks', { url: field(f, 'url'), tenant: tenants.chosen, kinds: words(f, 'kinds'), reasons: words(f, 'reasons') });
          done();
          return w.secret || '';
        }}
      >
        <label class="broad">URL <input name="url" type="url" required placeholder="https://example.org/treeline" spellcheck={false} autocapitalize="none" /></label>
        <label>Kinds; none: all <input name="kinds" placeholder="instance app" spellcheck={false} autocapitalize="none" /></label>
        <label>Reasons; none: all <input name="reasons" placeholder="failed access" spellcheck={false} autocapitalize="none" /></label>
      </Maker>
    </section>
  );
}

export function Webhooks({ user }: { user: User }) {
  const all = useLoaded(() => list<Webhook>('/v1/webhooks'), 'webhooks', refresh, '*');
  const rows = all.value?.items || [];
  return (
    <>
      <h1>Webhooks</h1>
      <p class="faint">They post a tenant's events to a URL. <a href={how}>What they send and how to check it</a></p>
      <Failure of={all.error} />
      {all.value && rows.length === 0 && <Empty command="treeline webhook create https://example.org/treeline" docs={how}>No webhook exists. Create one below, or:</Empty>}
      {rows.length > 0 && (
        <Table<Webhook>
          label="Webhooks"
          rows={rows}
          id={(w) => w.id}
          columns={[
            { name: 'URL', of: (w) => <a href={to('webhook', w.id)}><T>{w.url}</T></a> },
            { name: 'State', of: (w) => <Condition of={w} /> },
            { name: 'Delivered', number: true, of: (w) => w.delivered },
            { name: 'Dead letters', number: true, of: (w) => (w.dead || []).length + (w.lost ? ' + ' + w.lost + ' lost' : '') },
            { name: 'Events', wide: true, of: (w) => <T>{what(w)}</T> },
            { name: 'Tenant', wide: true, of: (w) => <T>{w.tenant}</T> },
            { name: 'By', wide: true, of: (w) => <T>{w.by}</T> },
          ]}
        />
      )}
      <DataAge at={all.at} />
      {may('apps') && <New user={user} done={all.again} />}
    </>
  );
}

export function WebhookPage({ id }: { id: string }) {
  const path = '/v1/webhooks/' + segment(id);
  const now = useLoaded((s) => get<Webhook>(path, s), id, refresh, '*');
  const w = now.value;
  const gone = now.error instanceof Refused && now.error.problem.status === 404;
  const dead = w?.dead || [];
  return (
    <>
      <p class="path"><a href={to('webhooks')}>Webhooks</a></p>
      <div class="title">
        <h1>{w && !gone ? <T>{w.url}</T> : <T>{id}</T>}</h1>
        {w && !gone && <Condition of={w} />}
        {w && !gone && may('apps', w.tenant) && (
          <span class="buttons">
            {(dead.length > 0 || w.error) && (
              <Dangerous name="Send again" title="Send again?" plain act={async () => (await post(path + '/retry'), now.again())}>
                <p>It sends the {count(dead.length, 'dead letter')} once more, and the event that waits for its next try.</p>
              </Dangerous>
            )}
            {!w.addon && (
              <Dangerous name="Delete" title={'Delete the webhook to ' + clean(w.url) + '?'} act={async () => (await send('DELETE', path), now.again())}>
                <p>It sends nothing more, and its dead letters are deleted.</p>
              </Dangerous>
            )}
          </span>
        )}
      </div>
      {gone ? <Empty command="treeline webhook list" docs={how}>There is no such webhook.</Empty> : <Failure of={now.error} />}
      {w && !gone && (
        <>
          <dl class="facts">
            <dt>Events</dt>
            <dd><T>{what(w)}</T> of <T>{w.tenant || 'the system'}</T></dd>
            <dt>Created</dt>
            <dd><Age of={w.created} /> ago by <T>{w.by}</T>{w.addon && <> with the addon <a href={to('addons')}><T>{w.addon}</T></a></>}</dd>
            <dt>Delivered</dt>
            <dd>{count(w.delivered, 'event')}{w.lost ? <span class="bad">; {count(w.lost, 'event')} lost</span> : null}</dd>
            {w.error && (
              <>
                <dt>Last error</dt>
                <dd><span class="bad"><T>{w.error}</T></span>{w.next && !w.next.startsWith('0001-') && <span class="faint"> next try {new Date(w.next).toLocaleTimeString('en-GB')}</span>}</dd>
              </>
            )}
          </dl>
          <h2>Dead letters</h2>
          {dead.length === 0 ? (
            <Empty command={'treeline webhook dead ' + w.id} docs={how}>Every event was delivered, or is still tried.</Empty>
          ) : (
            <Table<DeadLetter>
              label="Dead letters"
              rows={[...dead].reverse()}
              id={(d) => String(d.event.seq)}
              columns={[
                { name: 'Given up', of: (d) => <><Age of={d.time} /> ago</> },
                { name: 'Object', of: (d) => <><span class="faint"><T>{d.event.kind}</T></span> <T>{d.event.object}</T></> },
                { name: 'Event', of: (d) => <T>{[d.event.state, d.event.reason, d.event.detail].filter(Boolean).join(' ').slice(0, 300)}</T> },
                { name: 'Error', of: (d) => <T>{d.error}</T> },
              ]}
            />
          )}
          <DataAge at={now.at} />
        </>
      )}
    </>
  );
}
