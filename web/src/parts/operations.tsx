// The operations of the REST API from its OpenAPI document: parameters, schemas, examples, and requests to try.
import { useEffect, useRef, useState } from 'preact/hooks';
import { get, Refused, send } from '../http';
import { bounds, Described, Document, example, groups, kindOf, Media, Parameter, resolve, Schema, typeText } from '../openapi';
import { to, useRoute } from '../route';
import { Command, Failure, T, useLoaded } from './basics';

/** The properties of a schema; those of inner objects when they are opened. */
function Properties({ of, all, depth }: { of: Schema; all: Document; depth: number }) {
  const [schema] = resolve(all, of);
  if (kindOf(schema) === 'array' && schema.items) return <Properties of={schema.items} all={all} depth={depth} />;
  if (typeof schema.additionalProperties === 'object' && !schema.properties) return <Properties of={schema.additionalProperties} all={all} depth={depth} />;
  const names = Object.keys(schema.properties || {});
  if (names.length === 0) return <p class="faint">{[typeText(of), schema.description, bounds(schema)].filter(Boolean).join('. ')}</p>;
  return (
    <ul class="schema">
      {names.map((name) => (
        <Property key={name} name={name} of={schema.properties![name]} required={!!schema.required?.includes(name)} all={all} depth={depth} />
      ))}
    </ul>
  );
}

function inner(s: Schema, all: Document): boolean {
  const [r] = resolve(all, s);
  const next = kindOf(r) === 'array' ? r.items : typeof r.additionalProperties === 'object' ? r.additionalProperties : undefined;
  return next ? inner(next, all) : !!r.properties;
}

function Property({ name, of, required, all, depth }: { name: string; of: Schema; required: boolean; all: Document; depth: number }) {
  const [open, setOpen] = useState(false);
  const [schema] = resolve(all, of);
  const line = (
    <>
      <code>{name}</code> <span class="faint">{typeText(of)}</span>
      {required && <span class="required"> required</span>} {of.description || schema.description} <span class="faint">{bounds(schema)}</span>
    </>
  );
  if (!inner(of, all) || depth > 12) return <li>{line}</li>;
  return (
    <li>
      <details onToggle={(e) => setOpen((e.target as HTMLDetailsElement).open)}>
        <summary>{line}</summary>
        {open && <Properties of={of} all={all} depth={depth + 1} />}
      </details>
    </li>
  );
}

function Body({ content, all, label }: { content: Record<string, Media>; all: Document; label: string }) {
  return (
    <>
      {Object.entries(content).map(([type, m]) => {
        const json = type.includes('json');
        const text = json ? JSON.stringify(m.example ?? example(all, m.schema), null, 2) : '';
        return (
          <div key={type}>
            <p>
              <code>{type}</code>
            </p>
            {m.schema && <Properties of={m.schema} all={all} depth={0} />}
            {json && (
              <pre class="example" tabIndex={0} aria-label={'Example of ' + label}>
                {text}
              </pre>
            )}
          </div>
        );
      })}
    </>
  );
}

function curl(o: Described, all: Document): string {
  const parts = ['curl --cacert ca.pem'];
  if (o.method !== 'GET') parts.push('-X ' + o.method);
  if (o.security?.length) parts.push('-H "Authorization: Bearer $TREELINE_TOKEN"');
  for (const p of o.parameters || []) if (p.in === 'header' && p.required) parts.push("-H '" + p.name + ": *'");
  const body = o.requestBody?.content['application/json'];
  if (body) parts.push("-H 'Content-Type: application/json' --data '" + JSON.stringify(body.example ?? example(all, body.schema)) + "'");
  const path = o.path.replace(/\{(\w+)\}/g, (_, name) => String(o.parameters?.find((p) => p.in === 'path' && p.name === name)?.example ?? name));
  return parts.join(' ') + ' ' + location.origin + path;
}

const most = 256 * 1024; // bytes of an answer that are shown
const patience = 10_000; // ms for an answer, because streams do not end

interface Answer {
  status: number;
  type: string;
  text: string;
  cut: string;
}

/** The beginning of an answer. */
async function read(r: Response, stop: AbortController): Promise<[text: string, cut: string]> {
  const reader = r.body?.getReader();
  if (!reader) return [await r.text(), ''];
  const decode = new TextDecoder();
  let text = '';
  let late = false;
  const timer = setTimeout(() => ((late = true), void reader.cancel().catch(() => {})), patience);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return [text, late ? 'The first ten seconds of the stream.' : ''];
      text += decode.decode(value, { stream: true });
      if (text.length > most) {
        stop.abort();
        return [text.slice(0, most), 'The beginning; the rest is left out.'];
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

/** A form that sends a request that reads. */
function Try({ of, signedIn }: { of: Described; signedIn: boolean }) {
  const [answer, setAnswer] = useState<Answer>();
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const fields = (of.parameters || []).filter((p) => p.in === 'path' || p.in === 'query');
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const form = new FormData(e.target as HTMLFormElement);
    const value = (p: Parameter) => String(form.get(p.in + ' ' + p.name) || '').trim();
    let path = of.path;
    const query = new URLSearchParams();
    for (const p of fields) {
      if (p.in === 'path') path = path.replace('{' + p.name + '}', encodeURIComponent(value(p).replace(/[/#]/g, '~')));
      else if (value(p)) query.set(p.name, value(p));
    }
    setBusy(true);
    setError(undefined);
    setAnswer(undefined);
    const stop = new AbortController();
    try {
      const r = await send('GET', path + (String(query) ? '?' + query : ''), { signal: stop.signal });
      const [text, cut] = await read(r, stop);
      setAnswer({ status: r.status, type: r.headers.get('Content-Type') || '', text, cut });
    } catch (e) {
      if (e instanceof Refused) setAnswer({ status: e.problem.status, type: 'application/problem+json', text: JSON.stringify(e.problem), cut: '' });
      else setError(e);
    }
    setBusy(false);
  };
  return (
    <form class="try" onSubmit={submit}>
      <h3>Try it</h3>
      {of.security?.length && !signedIn ? (
        <p>Sign in to try this request.</p>
      ) : (
        <>
          {fields.length > 0 && (
            <div class="fields">
              {fields.map((p) => (
                <label key={p.in + p.name}>
                  {p.name}
                  <input name={p.in + ' ' + p.name} required={p.in === 'path'} placeholder={p.in === 'path' ? String(p.example ?? '') : ''} spellcheck={false} autocapitalize="none" />
                </label>
              ))}
            </div>
          )}
          <button type="submit" class="primary" disabled={busy}>
            {busy ? 'Sending…' : 'Send GET'}
          </button>
        </>
      )}
      <Failure of={error} />
      {answer && (
        <div role="status">
          <p>
            Status <b>{answer.status}</b> <code>{answer.type}</code>
          </p>
          <pre class="example" tabIndex={0} aria-label="Answer">
            <T>{pretty(answer)}</T>
          </pre>
          {answer.cut && <p class="faint">{answer.cut}</p>}
        </div>
      )}
    </form>
  );
}

function pretty(a: Answer): string {
  if (!a.type.includes('json')) return a.text;
  try {
    return JSON.stringify(JSON.parse(a.text), null, 2);
  } catch {
    return a.text;
  }
}

function Details({ of, all, signedIn }: { of: Described; all: Document; signedIn: boolean }) {
  return (
    <div class="inner">
      {of.description && <p>{of.description}</p>}
      <p class="faint">{of.security?.length ? 'Needs a token.' : 'Needs no token.'}</p>
      {!!of.parameters?.length && (
        <>
          <h3>Parameters</h3>
          <div class="scroll" tabIndex={0} role="group" aria-label={'Parameters of ' + of.summary}>
            <table>
              <thead>
                <tr>
                  <th scope="col">Name</th>
                  <th scope="col">In</th>
                  <th scope="col">Type</th>
                  <th scope="col">Meaning</th>
                </tr>
              </thead>
              <tbody>
                {of.parameters.map((p) => (
                  <tr key={p.in + p.name}>
                    <td>
                      <code>{p.name}</code>
                      {p.required && <span class="required"> required</span>}
                    </td>
                    <td>{p.in}</td>
                    <td>{typeText(p.schema)}</td>
                    <td>
                      {p.description} <span class="faint">{p.schema && bounds(p.schema)}</span> {p.example !== undefined && <code>{String(p.example)}</code>}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
      {of.requestBody && (
        <>
          <h3>Body</h3>
          <Body content={of.requestBody.content} all={all} label="the body" />
        </>
      )}
      <h3>Answers</h3>
      {Object.entries(of.responses).map(([status, r]) => (
        <details key={status} open={status < '300'}>
          <summary>
            <b>{status}</b> {r.description}
          </summary>
          {Object.keys(r.headers || {}).length > 0 && <p>Headers: {Object.entries(r.headers!).map(([h, s]) => h + (s.schema?.description ? ' (' + s.schema.description + ')' : '')).join(', ')}</p>}
          {r.content && <Body content={r.content} all={all} label={'answer ' + status} />}
        </details>
      ))}
      <h3>From a shell</h3>
      <Command text={curl(of, all)} />
      {of.method === 'GET' && !of.responses['101'] && <Try of={of} signedIn={signedIn} />}
    </div>
  );
}

function One({ of, all, signedIn, chosen }: { of: Described; all: Document; signedIn: boolean; chosen: boolean }) {
  const [open, setOpen] = useState(chosen);
  const self = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (!chosen) return;
    setOpen(true);
    self.current?.scrollIntoView();
  }, [chosen]);
  return (
    <details ref={self} class="operation" open={open} onToggle={(e) => e.target === e.currentTarget && setOpen(e.currentTarget.open)}>
      <summary>
        <span class={'method ' + of.method.toLowerCase()}>{of.method}</span> <code>{of.path}</code> <span class="faint">{of.summary}</span>
      </summary>
      {open && (
        <>
          <p>
            <a href={to('api', of.operationId)}>Link to this operation</a>
          </p>
          <Details of={of} all={all} signedIn={signedIn} />
        </>
      )}
    </details>
  );
}

/** All operations, with a filter. The one in the page's URL is open. */
export function Operations({ signedIn }: { signedIn: boolean }) {
  const loaded = useLoaded(() => get<Document>('/v1/openapi.json'), 'openapi');
  const [filter, setFilter] = useState('');
  const route = useRoute();
  const all = loaded.value;
  if (!all) return loaded.error ? <Failure of={loaded.error} /> : <p class="faint">Loading…</p>;
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (o: Described) => words.every((w) => (o.method + ' ' + o.path + ' ' + o.summary + ' ' + o.tags[0] + ' ' + o.operationId).toLowerCase().includes(w));
  const parts = groups(all)
    .map(([tag, ops]) => [tag, ops.filter(fits)] as const)
    .filter(([, ops]) => ops.length > 0);
  return (
    <>
      {all.info.description.split('\n\n').map((p) => (
        <p key={p}>{p}</p>
      ))}
      <label class="filter">
        Filter <input type="search" name="operations" value={filter} onInput={(e) => setFilter((e.target as HTMLInputElement).value)} placeholder="instances logs" />
      </label>
      {parts.length === 0 && <p>No operation fits.</p>}
      {parts.map(([tag, ops]) => (
        <section key={tag} aria-label={tag}>
          <h2>{tag}</h2>
          {ops.map((o) => (
            <One key={o.operationId} of={o} all={all} signedIn={signedIn} chosen={route.page === 'api' && route.id === o.operationId} />
          ))}
        </section>
      ))}
    </>
  );
}
