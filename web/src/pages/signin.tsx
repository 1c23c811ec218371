import { useState } from 'preact/hooks';
import { get, redeem, signIn, tier, useToken } from '../http';
import { Command, Failure } from '../parts/basics';

export function SignIn({ done, error }: { done: () => Promise<void>; error?: unknown }) {
  const [first, setFirst] = useState(false);
  const [failed, setFailed] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const form = new FormData(e.target as HTMLFormElement);
    const field = (name: string) => String(form.get(name) || '').trim();
    setBusy(true);
    setFailed(undefined);
    try {
      if (tier === 'cluster') {
        useToken(field('token'));
        await get('/v1/status');
      } else if (first) await redeem(field('user'), field('code'), String(form.get('password')));
      else await signIn(field('user'), String(form.get('password')));
      await done();
    } catch (err) {
      setFailed(err);
    }
    setBusy(false);
  };
  return (
    <main class="signin">
      <h1>
        <img src="/ui/icon.svg" alt="" width="28" height="28" /> Treeline
      </h1>
      <form onSubmit={submit}>
        {tier === 'cluster' ? (
          <label>
            Operator token
            <input name="token" type="password" autocomplete="off" required />
          </label>
        ) : (
          <>
            <label>
              User
              <input name="user" autocomplete="username" placeholder="tenant/name" required spellcheck={false} autocapitalize="none" />
            </label>
            {first && (
              <label>
                Sign-in code
                <input name="code" autocomplete="one-time-code" required spellcheck={false} />
              </label>
            )}
            <label>
              {first ? 'New password' : 'Password'}
              <input name="password" type="password" autocomplete={first ? 'new-password' : 'current-password'} required />
            </label>
          </>
        )}
        <Failure of={failed || error} />
        <button type="submit" class="primary" disabled={busy}>
          Sign in
        </button>
        {tier === 'root' && (
          <button type="button" class="link" onClick={() => setFirst(!first)}>
            {first ? 'I have a password' : 'I have a sign-in code'}
          </button>
        )}
      </form>
      <p class="faint">
        <a href="/docs/how-to/dashboard#sign-in">Help</a> · <a href="/docs/">Docs</a>
      </p>
      {tier === 'cluster' && <p class="faint">The token is in the file operator-token in the cluster's data directory.</p>}
      {tier === 'root' && first && (
        <div class="faint">
          <p>An administrator makes a code with:</p>
          <Command text="treeline user invite TENANT/NAME" />
        </div>
      )}
    </main>
  );
}
