// Parts that all pages use.
import type { ComponentChildren } from 'preact';
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { Refused } from '../http';
import { live } from '../live';
import { age, clean } from '../text';

/** Draws the component again whenever an object changes. */
export function useLive(): typeof live {
  const [, draw] = useState(0);
  useEffect(() => live.subscribe(() => draw((n) => n + 1)), []);
  return live;
}

/** Draws the component again each ms, for ages. */
export function useClock(ms: number) {
  const [, draw] = useState(0);
  useEffect(() => {
    const t = setInterval(() => document.hidden || draw((n) => n + 1), ms);
    return () => clearInterval(t);
  }, [ms]);
}

/** Text of other people. */
export function T({ children }: { children?: string }) {
  return <bdi>{clean(children)}</bdi>;
}

export function Age({ of }: { of?: string }) {
  useClock(1000);
  return of && !of.startsWith('0001-') ? (
    <time dateTime={of} title={of}>
      {age(of)}
    </time>
  ) : null;
}

const shapes: Record<string, string> = {
  running: '●', ready: '●', active: '●', live: '●', completed: '✓', dormant: '☾', failed: '✕', dead: '✕', removed: '✕', broken: '✕', terminated: '○', offline: '✕', silent: '✕', lost: '✕', unknown: '?',
};
const tones: Record<string, string> = {
  running: 'good', ready: 'good', active: 'good', live: 'good', completed: 'good', dormant: 'good', failed: 'bad', dead: 'bad', removed: 'bad', broken: 'bad', offline: 'bad', silent: 'bad', lost: 'bad', terminated: 'faint',
};

/** A state by shape, text and colour. */
export function State({ of, note }: { of: string; note?: string }) {
  return (
    <span class={'state ' + (tones[of] || 'busy')}>
      <span aria-hidden="true">{shapes[of] || '◐'}</span> {clean(of).replace(/_/g, ' ')}
      {note && <span class="note"> ({clean(note).replace(/_/g, ' ')})</span>}
    </span>
  );
}

export function Failure({ of }: { of: unknown }) {
  if (!of) return null;
  const lines = (of instanceof Error ? of.message : String(of)).split('\n');
  const code = of instanceof Refused && of.problem.code ? of.problem.code : '';
  return (
    <div class="failure" role="alert">
      {lines.map((l) => (
        <p key={l}>
          <T>{l}</T>
        </p>
      ))}
      {code && <p class="faint">{code}</p>}
    </div>
  );
}

/** What to do where nothing is. */
export function Empty({ children, command, docs }: { children: ComponentChildren; command?: string; docs?: string }) {
  return (
    <div class="empty">
      <p>{children}</p>
      {command && <Command text={command} />}
      {docs && (
        <p>
          <a href={docs}>Read how</a>
        </p>
      )}
    </div>
  );
}

export function Command({ text }: { text: string }) {
  const [copied, set] = useState(false);
  return (
    <div class="command">
      <code tabIndex={0}>{clean(text)}</code>
      <button type="button" onClick={() => navigator.clipboard?.writeText(text).then(() => set(true))}>
        {copied ? 'Copied' : 'Copy'}
      </button>
    </div>
  );
}

export interface Column<R> {
  name: string;
  wide?: boolean; // left out on narrow screens
  number?: boolean;
  of: (row: R) => ComponentChildren;
}

export function Table<R>({ label, rows, id, columns }: { label: string; rows: R[]; id: (r: R) => string; columns: Column<R>[] }) {
  const shown = rows.slice(0, 500);
  const style = (c: Column<R>) => (c.wide ? 'wide ' : '') + (c.number ? 'number' : '');
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((c) => (
              <th key={c.name} scope="col" class={style(c)}>
                {c.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((r) => (
            <tr key={id(r)} data-id={id(r)}>
              {columns.map((c) => (
                <td key={c.name} class={style(c)}>
                  {c.of(r)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown.length && <p class="faint">The first {shown.length} of {rows.length}. The command line lists all.</p>}
    </div>
  );
}

/** A part of a whole, with the numbers as text. */
export function Bar({ part, of, text, label }: { part: number; of: number; text: string; label: string }) {
  const share = of > 0 ? Math.min(1, Math.max(0, part / of)) : 0;
  return (
    <span class="bar">
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={label + ': ' + text}>
        <rect class="whole" width="100" height="8" />
        <rect class={share > 0.9 ? 'part high' : 'part'} width={100 * share} height="8" />
      </svg>
      <span>{text}</span>
    </span>
  );
}

/**
 * A button that opens a dialog, which says what will happen and may have fields, and acts on a second press. plain is for what
 * takes nothing away.
 */
export function Dangerous({ name, title, children, act, plain }: { name: string; title: string; children: ComponentChildren; act: (form: FormData) => Promise<unknown>; plain?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const style = plain ? '' : 'danger';
  return (
    <>
      <button
        type="button"
        class={style}
        onClick={() => {
          setError(undefined);
          dialog.current?.showModal();
        }}
      >
        {name}
      </button>
      <dialog ref={dialog} aria-label={title}>
        <form
          onSubmit={async (e) => {
            e.preventDefault();
            setBusy(true);
            setError(undefined);
            try {
              await act(new FormData(e.currentTarget));
              dialog.current?.close();
            } catch (err) {
              setError(err);
            }
            setBusy(false);
          }}
        >
          <h2>{title}</h2>
          {children}
          <Failure of={error} />
          <div class="actions">
            <button type="button" onClick={() => dialog.current?.close()}>
              Keep
            </button>
            <button type="submit" class={style} disabled={busy}>
              {name}
            </button>
          </div>
        </form>
      </dialog>
    </>
  );
}

export interface Loaded<R> {
  value?: R;
  error?: unknown;
  at: number; // performance.now() of the answer; 0: none yet
  again: () => void;
}

const pause = 1000; // ms between loads because of events

/**
 * Calls a function now, whenever key changes, each every ms while the page is visible, and when the stream has an event
 * of one of the kinds, which are separated by spaces ("*": all); never without a key.
 */
export function useLoaded<R>(load: (signal: AbortSignal) => Promise<R>, key: string, every = 0, kinds = ''): Loaded<R> {
  const [state, set] = useState<{ key: string; value?: R; error?: unknown; at: number }>({ key, at: 0 });
  const [round, next] = useState(0);
  useEffect(() => {
    if (!key) return undefined;
    const c = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let busy = false;
    let stale = false; // an event came since the last load began
    const later = (ms: number) => {
      clearTimeout(timer);
      timer = setTimeout(run, ms);
    };
    const run = async () => {
      busy = true;
      stale = false;
      if (!document.hidden || every === 0) {
        try {
          const value = await load(c.signal);
          if (!c.signal.aborted) set({ key, value, at: performance.now() });
        } catch (error) {
          if (!c.signal.aborted) set((s) => ({ ...(s.key === key ? s : { key, at: 0 }), error }));
        }
      }
      busy = false;
      if (c.signal.aborted) return;
      if (stale) later(pause);
      else if (every > 0) later(document.hidden ? Math.min(every, 5000) : every);
    };
    const end = live.follow((kind) => {
      if (stale || !kinds || (kind && kinds !== '*' && !kinds.split(' ').includes(kind))) return;
      stale = true;
      if (!busy) later(pause);
    });
    void run();
    return () => {
      end();
      c.abort();
      clearTimeout(timer);
    };
  }, [key, every, kinds, round]);
  const again = useCallback(() => next((n) => n + 1), []);
  return state.key === key ? { ...state, again } : { at: 0, again };
}

/** How old what a page shows is. */
export function DataAge({ at }: { at: number }) {
  useClock(1000);
  if (!at) return <p class="faint">Loading…</p>;
  const s = Math.round((performance.now() - at) / 1000);
  return <p class={s > 30 ? 'stale' : 'faint'}>{s < 2 ? 'Now' : s + ' s old'}</p>;
}
