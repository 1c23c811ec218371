// The placement as a funnel: the candidates, those that each constraint leaves out, and the rest.
import type { Explanation, Why } from '../types';
import { age, clean, count } from '../text';
import { Command, T } from './basics';

interface Cut {
  constraint: string;
  count: number;
  detail: string;
}

/** The constraints with the number of candidates that each leaves out, most first. */
export function cuts(e: Explanation): Cut[] {
  const found = new Map<string, Cut>();
  for (const c of e.causes || []) if (c.constraint !== 'fits') found.set(c.constraint, { constraint: c.constraint, count: c.count, detail: c.detail || '' });
  if (found.size === 0) {
    for (const r of e.candidates || []) {
      if (r.constraint === 'fits') continue;
      const c = found.get(r.constraint) || { constraint: r.constraint, count: 0, detail: '' };
      c.count++;
      if (!c.detail && r.need) c.detail = 'needs ' + r.need + (r.have ? ', has ' + r.have : '');
      found.set(r.constraint, c);
    }
  }
  return [...found.values()].sort((a, b) => b.count - a.count);
}

export function Funnel({ of, what, label }: { of: Explanation; what: string; label: string }) {
  const all = cuts(of);
  const out = all.reduce((n, c) => n + c.count, 0);
  let left = of.considered;
  const bar = (n: number) => (
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class="part" x={of.considered ? 50 - (50 * n) / of.considered : 0} width={of.considered ? (100 * n) / of.considered : 0} height="10" />
    </svg>
  );
  return (
    <ol class="funnel" aria-label={label}>
      <li>
        {bar(left)} <span>{count(of.considered, what)} considered</span>
      </li>
      {all.map((c) => {
        left = Math.max(0, left - c.count);
        return (
          <li key={c.constraint}>
            {bar(left)}
            <span>
              − {c.count} <b>{clean(c.constraint).replace(/_/g, ' ')}</b> <span class="faint"><T>{c.detail}</T></span>
            </span>
          </li>
        );
      })}
      <li>
        {bar(left)} <span><b>{count(Math.max(0, of.considered - out), what)}</b> can take it</span>
      </li>
    </ol>
  );
}

function Nearest({ of }: { of: Explanation }) {
  const r = of.nearest;
  if (!r || r.constraint === 'fits') return null;
  return (
    <p>
      Nearest miss: <b><T>{r.candidate}</T></b>, {clean(r.constraint).replace(/_/g, ' ')}
      {r.short && <> short by <T>{r.short}</T></>}
      {r.need && <> (needs <T>{r.need}</T>{r.have && <>, has <T>{r.have}</T></>})</>}
    </p>
  );
}

export function WhyView({ why }: { why: Why }) {
  const asked = (why.clusters || []).filter((c) => c.answer && c.answer.considered > 0);
  const chosen = why.instance.cluster;
  return (
    <>
      <p><T>{why.summary}</T></p>
      <div class="funnels">
        <div>
          <h3>At the root</h3>
          <Funnel of={why.root} what="cluster" label="Placement at the root" />
          <Nearest of={why.root} />
          {(why.ranked || []).length > 0 && (
            <p class="faint">
              Ranked:{' '}
              {why.ranked!.slice(0, 5).map((r, n) => (
                <span key={r.cluster}>
                  {n > 0 && ', '}
                  <T>{r.cluster}</T> {r.score.toFixed(2)}
                  {r.cluster === chosen && ' (chosen)'}
                </span>
              ))}
            </p>
          )}
        </div>
        {asked.map((c) => (
          <div key={c.cluster}>
            <h3>In <T>{c.cluster}</T> <span class="faint">{age(c.at)} ago</span></h3>
            <Funnel of={c.answer} what="node" label={'Placement in ' + clean(c.cluster)} />
            <Nearest of={c.answer} />
          </div>
        ))}
      </div>
      {(why.would_help || []).map((h) => (
        <p key={h}>What would help: <T>{h}</T></p>
      ))}
      <details>
        <summary>The same on the command line</summary>
        <Command text={'treeline why ' + why.instance.id} />
      </details>
    </>
  );
}
