// The output of an instance, and a terminal in it.
import { useEffect, useRef, useState } from 'preact/hooks';
import { bearer, post, Refused, segment, send } from '../http';
import { clean } from '../text';
import { Failure, T } from './basics';

const maxLines = 2000;
const maxLine = 4000; // characters
const maxText = 400_000; // characters of all lines; layout of more takes seconds
const drawEvery = 100; // ms
const burst = 256 << 10; // bytes that are read before other work of the page has a turn

/** Follows the log until the signal. The lines are clean. */
async function follow(id: string, previous: boolean, signal: AbortSignal, lines: (l: string[]) => void) {
  const r = await send('GET', '/v1/instances/' + segment(id) + '/logs?tail=500&follow=' + !previous + '&previous=' + previous, { signal });
  const stream = r.headers.get('Treeline-Stream');
  const renew = (seconds: number) => {
    if (!stream || !(seconds > 0)) return;
    const timer = setTimeout(async () => {
      try {
        await bearer();
        renew((await post<{ life_seconds: number }>('/v1/auth/streams/' + encodeURIComponent(stream))).life_seconds);
      } catch {
        // the stream ends with its token, which is shown
      }
    }, Math.max(5, seconds - 20) * 1000);
    signal.addEventListener('abort', () => clearTimeout(timer));
  };
  renew(Number(r.headers.get('Treeline-Stream-Life')));
  const reader = r.body!.getReader();
  const decoder = new TextDecoder();
  let read = 0;
  for (let rest = ''; ; ) {
    const { done, value } = await reader.read();
    if ((read += value?.length || 0) > burst) {
      read = 0;
      await new Promise((go) => setTimeout(go, 20));
      if (signal.aborted) return;
    }
    if (done) {
      if (rest) lines([clean(rest)]);
      return;
    }
    const parts = (rest + decoder.decode(value, { stream: true })).split('\n');
    rest = parts.pop()!.slice(-maxLine);
    if (parts.length > 0) lines(parts.slice(-maxLines).map((l) => clean(l.replace(/\r$/, '').slice(0, maxLine))));
  }
}

/** The newest lines, within the limits of what is shown. */
function newest(lines: string[]): string[] {
  let from = lines.length;
  for (let text = 0; from > 0 && lines.length - from < maxLines && (text += lines[from - 1].length) <= maxText; ) from--;
  return lines.slice(Math.min(from, lines.length - 1));
}

export function Log({ id, restarts }: { id: string; restarts: number }) {
  const [lines, setLines] = useState<string[]>([]);
  const [error, setError] = useState<unknown>();
  const [ended, setEnded] = useState(false);
  const [previous, setPrevious] = useState(false);
  const [round, again] = useState(0);
  const box = useRef<HTMLPreElement>(null);
  const bottom = useRef(true);
  useEffect(() => {
    const c = new AbortController();
    let all: string[] = [];
    let drawn = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const draw = () => {
      drawn = 0;
      setLines(all);
    };
    setLines([]);
    setError(undefined);
    setEnded(false);
    follow(id, previous, c.signal, (l) => {
      all = newest([...all, ...l]);
      drawn ||= window.setTimeout(draw, drawEvery);
    }).then(
      () => c.signal.aborted || setEnded(true),
      (e) => {
        if (c.signal.aborted) return;
        setError(e);
        if (!(e instanceof Refused)) timer = setTimeout(() => again((n) => n + 1), 2000); // the connection broke
      },
    );
    return () => {
      clearTimeout(timer);
      c.abort();
      clearTimeout(drawn);
    };
  }, [id, previous, round, restarts]);
  useEffect(() => {
    if (bottom.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  return (
    <>
      <pre
        class="log"
        ref={box}
        tabIndex={0}
        role="log"
        aria-label="Output"
        onScroll={(e) => (bottom.current = e.currentTarget.scrollHeight - e.currentTarget.scrollTop - e.currentTarget.clientHeight < 30)}
      >
        {lines.length === 0 && !error ? <span class="faint">No output yet.</span> : lines.join('\n')}
      </pre>
      <Failure of={error} />
      <div class="asked">
        <label>
          <input type="checkbox" checked={previous} onChange={(e) => setPrevious(e.currentTarget.checked)} /> before the last restart
        </label>
        {(ended || !!error) && (
          <>
            <span class="faint">The stream has ended.</span>
            <button type="button" onClick={() => again((n) => n + 1)}>Follow again</button>
          </>
        )}
      </div>
    </>
  );
}

export function Shell({ id }: { id: string }) {
  const [command, setCommand] = useState('/bin/sh');
  const [round, start] = useState(0);
  const [result, setResult] = useState('');
  const [error, setError] = useState<unknown>();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (round === 0) return undefined;
    let close = () => {};
    let gone = false;
    setResult('');
    setError(undefined);
    import('../terminal')
      .then((m) => m.openTerminal(box.current!, id, command.trim().split(/\s+/), setResult))
      .then(
        (c) => (gone ? c() : (close = c)),
        (e) => setError(e),
      );
    return () => {
      gone = true;
      close();
    };
  }, [id, round]);
  return (
    <>
      <form
        class="scale"
        onSubmit={(e) => {
          e.preventDefault();
          start((n) => n + 1);
        }}
      >
        <label>Program <input name="program" value={command} onInput={(e) => setCommand(e.currentTarget.value)} required spellcheck={false} autocapitalize="none" /></label>
        <button type="submit">{round === 0 ? 'Open terminal' : 'Open again'}</button>
        {round > 0 && !result && <button type="button" onClick={() => start(0)}>Close</button>}
      </form>
      {round === 0 && <p class="faint">Each terminal is recorded in the events, with your name.</p>}
      {round > 0 && <div class="terminal" ref={box} key={round} />}
      {result && <p role="status">The process <T>{result}</T>.</p>}
      <Failure of={error} />
    </>
  );
}
