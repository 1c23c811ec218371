// A text with the numbers of its lines, and marks at lines with faults.
import { useRef } from 'preact/hooks';
import { clean } from '../text';

export interface Mark {
  line: number;
  text: string;
}

export function Editor({ text, set, marks }: { text: string; set: (text: string) => void; marks: Mark[] }) {
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
        name="sla"
        aria-label="SLA"
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
