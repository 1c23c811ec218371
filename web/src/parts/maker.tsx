// Forms that make something, which is shown once.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { Command, Failure } from './basics';

/** A form that makes something, which is shown once. */
export function Maker({ name, make, children, show }: { name: string; make: (f: FormData) => Promise<string>; children: ComponentChildren; show: string }) {
  const [made, setMade] = useState('');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  return (
    <>
      <form
        class="fields"
        onSubmit={async (e) => {
          e.preventDefault();
          const form = e.currentTarget;
          setBusy(true);
          setMade('');
          setError(undefined);
          try {
            setMade(await make(new FormData(form)));
            form.reset();
          } catch (err) {
            setError(err);
          }
          setBusy(false);
        }}
      >
        {children}
        <button type="submit" disabled={busy}>{name}</button>
      </form>
      <Failure of={error} />
      {made && (
        <div role="status" class="made">
          <p>{show}</p>
          <Command text={made} />
        </div>
      )}
    </>
  );
}

export function field(f: FormData, name: string): string {
  return String(f.get(name) || '').trim();
}
