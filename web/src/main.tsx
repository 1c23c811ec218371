import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { onSignedOut, signOut, tier, User, whoAmI } from './http';
import { live } from './live';
import { may, setUser as setMe } from './may';
import { Route, to, useRoute } from './route';
import { Failure, State, T, useClock, useLive } from './parts/basics';
import { clean } from './text';
import { Access } from './pages/access';
import { Addons } from './pages/addons';
import { ApplicationPage } from './pages/application';
import { Applications } from './pages/applications';
import { ClusterPage } from './pages/cluster';
import { Clusters } from './pages/clusters';
import { KindPage, Kinds, NewKind, ResourcePage } from './pages/custom';
import { Deploy } from './pages/deploy';
import { Events } from './pages/events';
import { InstancePage } from './pages/instance';
import { Network } from './pages/network';
import { NodePage } from './pages/node';
import { OwnAccess } from './pages/own/access';
import { OwnEvents } from './pages/own/events';
import { OwnInstance } from './pages/own/instance';
import { OwnInstances } from './pages/own/instances';
import { OwnOverview } from './pages/own/overview';
import { Overview } from './pages/overview';
import { Records } from './pages/records';
import { Rest } from './pages/rest';
import { ServicePage } from './pages/service';
import { SignIn } from './pages/signin';
import { ValuesLists, ValuesPage } from './pages/values';
import { Volumes } from './pages/volumes';
import { WebhookPage, Webhooks } from './pages/webhooks';

const own = tier === 'cluster'; // a cluster's own dashboard

const ownLinks: [page: string, name: string][] = [
  ['', 'Overview'],
  ['instances', 'Instances'],
  ['events', 'Events'],
  ['access', 'Access'],
  ['api', 'API'],
];

/** A page of a cluster's own dashboard. */
function OwnPage({ route }: { route: Route }) {
  switch (route.page) {
    case '':
      return <OwnOverview />;
    case 'instances':
      return <OwnInstances />;
    case 'instance':
      return <OwnInstance key={route.id} id={route.id} />;
    case 'node':
      return <NodePage key={route.id} cluster="" id={route.id} />;
    case 'events':
      return <OwnEvents />;
    case 'access':
      return <OwnAccess />;
    case 'api':
      return <Rest />;
  }
  return <NoPage />;
}

function NoPage() {
  return (
    <>
      <h1>No such page</h1>
      <p>
        <a href={to('')}>Overview</a>
      </p>
    </>
  );
}

const rootLinks: [page: string, name: string][] = [
  ['', 'Overview'],
  ['apps', 'Applications'],
  ['deploy', 'Deploy'],
  ['clusters', 'Clusters'],
  ['network', 'Network'],
  ['kinds', 'Resources'],
  ['events', 'Events'],
  ['access', 'Access'],
  ['api', 'API'],
];

/** The pages that share an entry of the navigation, which leads to the first. */
const groups: [name: string, links: [page: string, name: string][]][] = [
  ['Resources', [['kinds', 'Custom kinds'], ['volumes', 'Volumes'], ['values', 'Secrets and configs'], ['webhooks', 'Webhooks'], ['addons', 'Addons']]],
  ['Events', [['events', 'Newest'], ['records', 'Who did what']]],
];

/** What a user needs for a page to be of use. */
const needs: Record<string, 'apps' | 'clusters'> = { apps: 'apps', deploy: 'apps', kinds: 'apps', clusters: 'clusters' };

const titles: Record<string, string> = { app: 'Application', service: 'Service', instance: 'Instance', cluster: 'Cluster', node: 'Node', kind: 'Kind', resource: 'Resource', webhook: 'Webhook', secret: 'Secret', config: 'Config' };

/** Where a page belongs in the navigation. */
const parents: Record<string, string> = own
  ? { instance: 'instances' }
  : { app: 'apps', service: 'apps', instance: 'apps', cluster: 'clusters', node: 'clusters', kind: 'kinds', resource: 'kinds', webhook: 'webhooks', secret: 'values', config: 'values' };

function Page({ route, user }: { route: Route; user: User }) {
  switch (route.page) {
    case '':
      return <Overview />;
    case 'apps':
      return <Applications />;
    case 'app':
      return <ApplicationPage id={route.id} />;
    case 'service':
      return <ServicePage id={route.id} />;
    case 'instance':
      return <InstancePage id={route.id} />;
    case 'deploy':
      return <Deploy key={route.id} id={route.id} user={user} />;
    case 'kinds':
      return <Kinds />;
    case 'kind':
      return route.id ? <KindPage key={route.id + route.more} id={route.id} more={route.more} /> : <NewKind user={user} />;
    case 'resource':
      return <ResourcePage key={route.id} id={route.id} />;
    case 'volumes':
      return <Volumes />;
    case 'values':
      return <ValuesLists user={user} />;
    case 'secret':
    case 'config':
      return <ValuesPage key={route.page + route.id} kind={route.page} id={route.id} />;
    case 'webhooks':
      return <Webhooks user={user} />;
    case 'webhook':
      return <WebhookPage key={route.id} id={route.id} />;
    case 'addons':
      return <Addons />;
    case 'records':
      return <Records />;
    case 'clusters':
      return <Clusters />;
    case 'cluster':
      return <ClusterPage id={route.id} />;
    case 'node':
      return <NodePage key={route.id + ' ' + route.more} cluster={route.id} id={route.more} />;
    case 'network':
      return <Network />;
    case 'access':
      return <Access user={user} />;
    case 'api':
      return <Rest />;
    case 'events':
      return <Events />;
  }
  return <NoPage />;
}

/** Whether the page shows current data, and how old it is otherwise. */
function Freshness() {
  const l = useLive();
  useClock(1000);
  const s = l.heard ? Math.round((performance.now() - l.heard) / 1000) : 0;
  // The server sends a bookmark each 15 s.
  const standing = l.standing === 'live' && s > 40 ? 'broken' : l.standing;
  const text = standing === 'live' ? 'live' : standing === 'broken' ? 'offline' : 'connecting';
  return (
    <span class="freshness" role="status" title={l.error || 'The ' + tier + ' confirms every 15 s that nothing is missing.'}>
      <State of={text} /> <span class="faint">{l.heard ? (s < 2 ? 'now' : s + ' s ago') : ''}</span>
    </span>
  );
}

function Frame({ user, out }: { user: User; out: () => void }) {
  const route = useRoute();
  const l = useLive();
  useEffect(() => {
    live.start();
    return () => live.stop();
  }, []);
  const links = own ? ownLinks : rootLinks;
  const page = parents[route.page] || route.page;
  const group = own ? undefined : groups.find(([, of]) => of.some(([p]) => p === page));
  const here = group ? group[1][0][0] : page;
  const title = titles[route.page] || (group?.[1] || links).find(([p]) => p === route.page)?.[1] || 'Treeline';
  useEffect(() => {
    document.title = title + (route.id ? ' ' + clean(route.more || route.id) : '') + ' · Treeline';
    document.getElementById('main')?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [route.page, route.id, route.more]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), document.getElementById('main')?.focus())}>
        Skip to the content
      </a>
      <header>
        <a class="brand" href={to('')}>
          <img src="/ui/icon.svg" alt="" width="20" height="20" /> Treeline
        </a>
        <nav aria-label="Pages">
          {links.filter(([page]) => may(needs[page] || 'events')).map(([page, name]) => (
            <a key={page} href={to(page)} aria-current={here === page ? (group ? 'true' : 'page') : undefined}>
              {name}
            </a>
          ))}
          <a href="/docs/">Docs</a>
        </nav>
        <span class="who">
          <Freshness />
          <span class="name" title={user.roles.join(', ')}>
            <T>{user.user}</T>
          </span>
          <button type="button" onClick={out}>
            Sign out
          </button>
        </span>
      </header>
      {group && (
        <nav class="group" aria-label={group[0]}>
          {group[1].map(([p, name]) => <a key={p} href={to(p)} aria-current={page === p ? 'page' : undefined}>{name}</a>)}
        </nav>
      )}
      <main id="main" tabIndex={-1}>
        {l.standing === 'broken' && <Failure of={new Error('The ' + tier + ' cannot be reached; what is shown may be old. ' + l.error)} />}
        {own ? <OwnPage route={route} /> : <Page route={route} user={user} />}
      </main>
    </>
  );
}

/** The page about the API at its own URL, with or without a session. */
function API({ user, enter, out }: { user?: User; enter: () => void; out: () => void }) {
  useEffect(() => {
    document.title = 'API · Treeline';
  }, []);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), document.getElementById('main')?.focus())}>
        Skip to the content
      </a>
      <header>
        <a class="brand" href="/ui/">
          <img src="/ui/icon.svg" alt="" width="20" height="20" /> Treeline
        </a>
        <nav aria-label="Parts">
          <a href="/ui/">Dashboard</a>
          <a href="/docs/">Docs</a>
          <a href="/v1/docs" aria-current="page">
            API
          </a>
        </nav>
        <span class="who">
          {user && (
            <span class="name">
              <T>{user.user}</T>
            </span>
          )}
          <button type="button" onClick={user ? out : enter}>
            {user ? 'Sign out' : 'Sign in'}
          </button>
        </span>
      </header>
      <main id="main" tabIndex={-1}>
        <Rest signedIn={!!user} />
      </main>
    </>
  );
}

function Treeline() {
  const [user, setUser] = useState<User | undefined>();
  const [error, setError] = useState<unknown>();
  const [asked, setAsked] = useState(false);
  const [entering, setEntering] = useState(false);
  const ask = () =>
    whoAmI()
      .then((u) => {
        if (u) setMe(u);
        setUser(u);
        setError(undefined);
      }, setError)
      .finally(() => setAsked(true));
  useEffect(() => {
    onSignedOut(() => setUser(undefined));
    void ask();
  }, []);
  if (!asked) return <p class="faint loading">Loading…</p>;
  const out = () => void signOut().then(() => setUser(undefined));
  if (location.pathname === '/v1/docs' && (user || !entering)) return <API user={user} enter={() => setEntering(true)} out={() => (setEntering(false), out())} />;
  if (!user) return <SignIn done={ask} error={error} />;
  return <Frame user={user} out={out} />;
}

render(<Treeline />, document.getElementById('page')!);
