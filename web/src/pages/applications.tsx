import type { App } from '../types';
import { Age, Empty, Failure, State, T, Table, useLive } from '../parts/basics';
import { to } from '../route';

export function standing(a: { running: number; wanted: number; completed?: number; failed?: number; dormant?: number; leaving?: boolean }): string {
  if (a.leaving) return 'stopping';
  if (a.failed) return 'failed';
  if (a.running + (a.completed || 0) + (a.dormant || 0) >= a.wanted) return a.running || a.wanted === 0 ? 'running' : a.dormant ? 'dormant' : 'completed';
  return 'starting';
}

export function Applications() {
  const l = useLive();
  const apps = l.list('app');
  return (
    <>
      <h1>Applications</h1>
      {!l.loaded ? (
        l.error ? <Failure of={l.error} /> : <p class="faint">Loading…</p>
      ) : apps.length === 0 ? (
        <Empty command="treeline apply -f sla.yaml" docs="/docs/how-to/developer">No application is deployed. <a href={to('deploy')}>Deploy one</a>, or:</Empty>
      ) : (
        <Table<App>
          label="Applications"
          rows={apps}
          id={(a) => a.id}
          columns={[
            { name: 'Name', of: (a) => <a href={to('app', a.id)}><T>{a.id}</T></a> },
            { name: 'State', of: (a) => <State of={standing(a)} /> },
            { name: 'Running', number: true, of: (a) => a.running + ' / ' + a.wanted },
            { name: 'Services', number: true, wide: true, of: (a) => a.services.length },
            { name: 'Created', of: (a) => <Age of={a.created} /> },
            { name: 'By', wide: true, of: (a) => <T>{a.by}</T> },
          ]}
        />
      )}
    </>
  );
}
