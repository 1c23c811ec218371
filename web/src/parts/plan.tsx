// What applying a document would do.
import type { AppPlan, InstancePlan, Plan } from '../types';
import { duration, short } from '../text';
import { T, Table } from './basics';
import { Funnel } from './funnel';

function Where({ of }: { of: InstancePlan }) {
  return (
    <>
      {of.cluster && <T>{of.cluster}</T>}
      {of.node && <> / <T>{of.node}</T></>}
      {of.others ? <span class="faint"> or {of.others} more</span> : null}
      {(of.headroom || []).map((h) => <div key={h} class="faint">left: <T>{h}</T></div>)}
    </>
  );
}

function Application({ of }: { of: AppPlan }) {
  const unplaced = (of.instances || []).find((i) => i.why && !i.cluster);
  return (
    <section>
      <h3><T>{short(of.id)}</T>: <T>{of.action}</T></h3>
      {(of.changes || []).length > 0 && (
        <ul class="plain changes">
          {of.changes!.slice(0, 100).map((c) => (
            <li key={c.path}>
              <code><T>{c.path}</T></code> {c.old !== undefined && <del><T>{c.old}</T></del>} {c.new !== undefined && <ins><T>{c.new}</T></ins>}
            </li>
          ))}
        </ul>
      )}
      {(of.instances || []).length > 0 && (
        <Table<InstancePlan>
          label={'Instances of ' + short(of.id)}
          rows={of.instances!}
          id={(i) => i.id}
          columns={[
            { name: 'Instance', of: (i) => <T>{short(i.id)}</T> },
            { name: 'Will', of: (i) => <T>{i.action.replace(/_/g, ' ')}</T> },
            { name: 'Where', of: (i) => <Where of={i} /> },
          ]}
        />
      )}
      {unplaced && <Funnel of={unplaced.why!} what="cluster" label={'Why ' + short(unplaced.id) + ' is not placed'} />}
    </section>
  );
}

export function PlanView({ plan }: { plan: Plan }) {
  const silent = (plan.clusters || []).filter((c) => !c.asked || c.error);
  return (
    <div class="plan">
      {plan.apps.map((a) => <Application key={a.id} of={a} />)}
      {(plan.clusters || []).length > 0 && (
        <p class="faint">
          By the {plan.clusters!.length === 1 ? 'view of 1 cluster' : 'views of ' + plan.clusters!.length + ' clusters'}, the oldest {duration(1000 * Math.max(...plan.clusters!.map((c) => c.age_seconds)))} old
          {silent.length > 0 && <>; not asked: <T>{silent.map((c) => c.cluster).join(', ')}</T></>}.
        </p>
      )}
    </div>
  );
}
