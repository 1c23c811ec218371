// A text with the numbers of its lines, and marks at lines with faults.
import { useRef } from 'preact/hooks';
import { Refused } from '../http';
import { lineOf } from '../document';
import { clean } from '../text';
import { Failure, T } from './basics';

export interface Mark {
  line: number;
  text: string;
}

/** The faults of a refused document at their lines. */
export function marksOf(text: string, error: unknown): Mark[] {
  const p = error instanceof Refused ? error.problem : undefined;
  const marks = (p?.errors || []).map((e) => ({ line: e.pointer !== undefined ? lineOf(text, e.pointer) : 0, text: e.detail }));
  const said = p ? p.detail || '' : error instanceof Error ? error.message : '';
  const line = /\bline (\d+)/.exec(said);
  if (line) marks.push({ line: Number(line[1]), text: said });
  return marks.filter((m) => m.line > 0);
}

/** The faults of a document below its editor. */
export function Faults({ marks, error }: { marks: Mark[]; error: unknown }) {
  if (marks.length === 0) return <Failure of={error} />;
  return (
    <div role="alert">
      <ul class="faults">
        {marks.map((m, n) => <li key={n}>line {m.line}: <T>{m.text}</T></li>)}
      </ul>
    </div>
  );
}

export function Editor({ text, set, marks, name = 'sla', label = 'SLA' }: { text: string; set: (text: string) => void; marks: Mark[]; name?: string; label?: string }) {
  const gutter = useRef<HTMLDivElement>(null);
  const lines = text.split('\n').length;
  const wrong = new Map(marks.map((m) => [m.line, m.text]));
  return (
    <div class="editor">
      <div class="gutter" ref={gutter} aria-hidden="true">
        {Array.from({ length: lines }, (_, n) => (
          <div key={n} class={wrong.has(n + 1) ? 'wrong' : ''} title={clean(wrong.get(n + 1))}>
            {n + 1}
          </div>
        ))}
      </div>
      <textarea
        name={name}
        aria-label={label}
        spellcheck={false}
        autocapitalize="none"
        wrap="off"
        rows={Math.min(32, Math.max(14, lines + 1))}
        value={text}
        onInput={(e) => set(e.currentTarget.value)}
        onScroll={(e) => gutter.current && (gutter.current.scrollTop = e.currentTarget.scrollTop)}
        aria-invalid={marks.length > 0}
      />
    </div>
  );
}
