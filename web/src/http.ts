// Requests to the API of the daemon that serves the page, and the session of the page's user.
//
// The tokens are in the memory of this tab and its session storage, not in a cookie: cookies are sent
// to every port of a host, so that a workload that publishes a port on the root's host would get
// them, and other sites could make the browser send requests with them.
import type { Problem, Session } from './types';

export const tier = document.documentElement.dataset.tier === 'cluster' ? 'cluster' : 'root';

export interface Page<T> {
  items: T[];
  next?: string;
  revision?: number;
}

/** Refused is an answer with a problem. */
export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super([problem.detail || problem.title, ...(problem.errors || []).map((e) => (e.pointer || e.where || '') + ' ' + e.detail)].join('\n'));
  }
}

export interface User {
  user: string;
  tenant: string;
  roles: string[];
}

interface Kept {
  refresh?: string; // of a session at the root
  token?: string; // of an operator at a cluster
}

const storageKey = 'treeline-session';
let access = '';
let expires = 0; // by performance.now()
let refreshing: Promise<void> | undefined;
let replacing: Promise<void> | undefined; // the change of the password, which ends the session, and the next sign-in
let ended = () => {};

/** Calls fn when the session has ended and the user has to sign in again. */
export function onSignedOut(fn: () => void) {
  ended = fn;
}

function kept(): Kept {
  try {
    return JSON.parse(sessionStorage.getItem(storageKey) || '{}');
  } catch {
    return {};
  }
}

function keep(k?: Kept) {
  if (k) sessionStorage.setItem(storageKey, JSON.stringify(k));
  else sessionStorage.removeItem(storageKey);
}

function begin(s: Session) {
  access = s.access;
  // Renewed before its end. The server's clock may differ from this machine's.
  expires = performance.now() + Math.max(10, (Date.parse(s.expires) - serverNow()) / 1000 - 30) * 1000;
  keep({ refresh: s.refresh });
}

export async function signIn(user: string, password: string) {
  begin(await post<Session>('/v1/auth/login', { user, password }));
}

export async function redeem(user: string, code: string, password: string) {
  begin(await post<Session>('/v1/auth/redeem', { user, code, password }));
}

/** Changes the password of the page's user, which ends the session, and begins another. */
export async function changePassword(user: string, old: string, password: string) {
  replacing = post('/v1/auth/password', { old, password })
    .then(() => signIn(user, password))
    .finally(() => (replacing = undefined));
  await replacing;
}

export function useToken(token: string) {
  access = token;
  expires = Infinity;
  keep({ token });
}

export async function signOut() {
  const { refresh } = kept();
  access = '';
  keep();
  if (refresh) await post('/v1/auth/logout', { refresh }).catch(() => {});
}

/** The user of the page, or undefined if nobody is signed in. */
export async function whoAmI(): Promise<User | undefined> {
  const k = kept();
  if (k.token) {
    useToken(k.token);
  } else if (!access && !k.refresh) return undefined;
  try {
    if (tier === 'cluster') {
      await get('/v1/status');
      return { user: 'operator', tenant: '', roles: ['Admin'] };
    }
    const p = await get<User>('/v1/auth/me');
    return { user: p.user, tenant: p.tenant || '', roles: p.roles };
  } catch (e) {
    if (e instanceof Refused && e.problem.status === 401) return undefined;
    throw e;
  }
}

/** A valid access token. */
export async function bearer(): Promise<string> {
  if (access && performance.now() < expires) return access;
  const { refresh } = kept();
  if (!refresh) return access;
  refreshing ||= post<Session>('/v1/auth/refresh', { refresh })
    .then(begin, (e) => {
      if (e instanceof Refused && e.problem.status === 401) {
        access = '';
        keep();
        ended();
      }
      throw e;
    })
    .finally(() => (refreshing = undefined));
  await refreshing;
  return access;
}

let offset = 0; // of the server's clock from this machine's, in ms

/** The server's time, by which the ages of its objects are computed. */
export function serverNow(): number {
  return Date.now() + offset;
}

function noteClock(r: Response) {
  const d = Date.parse(r.headers.get('Date') || '');
  if (!isNaN(d)) {
    const o = d + 500 - Date.now(); // the header has seconds
    offset = Math.abs(o) > 2000 ? o : 0;
  }
}

const maxTries = 3;

/** Sends a request. It throws Refused for an answer with a problem. */
export async function send(method: string, path: string, init: { body?: unknown; text?: string; type?: string; headers?: Record<string, string>; signal?: AbortSignal } = {}): Promise<Response> {
  const headers: Record<string, string> = { ...init.headers };
  let used = '';
  const open = /^\/v1\/auth\/(login|redeem|refresh|logout)$/.test(path);
  if (!open) {
    const token = await bearer();
    if (token) headers.Authorization = 'Bearer ' + token;
    used = token;
  }
  let body = init.text;
  if (init.body !== undefined) body = JSON.stringify(init.body);
  if (body !== undefined) headers['Content-Type'] = init.type || 'application/json';
  // Browsers end all connections when the machine's network changes. A request is repeated if it then takes effect once.
  const harmless = method !== 'POST' || path.includes(':plan');
  const keyed = !harmless && tier === 'root' && !path.startsWith('/v1/auth/');
  if (keyed) headers['Idempotency-Key'] = crypto.randomUUID();
  let r: Response | undefined;
  let tries = 0;
  while (!r) {
    try {
      tries++;
      r = await fetch(path, { method, headers, body, signal: init.signal, credentials: 'omit', redirect: 'error', cache: 'no-store' });
    } catch (e) {
      if (init.signal?.aborted) throw e;
      if (!(harmless || keyed) || tries === maxTries) throw new Error('The ' + tier + ' does not answer.');
      await new Promise((again) => setTimeout(again, 200));
    }
  }
  noteClock(r);
  if (r.ok || (method === 'DELETE' && tries > 1 && r.status === 404)) return r; // deleted by the earlier try
  let problem: Problem = { code: '', status: r.status, title: r.statusText || 'status ' + r.status, type: '' };
  try {
    problem = { ...problem, ...(await r.json()) };
  } catch {
    // not a problem document; the status says enough
  }
  if (r.status === 401 && !open) {
    // The session of this request may have been replaced meanwhile.
    if (path !== '/v1/auth/password') await replacing?.catch(() => {});
    if (used !== access && access) return send(method, path, init);
  }
  if (r.status === 401 && !open && path !== '/v1/auth/me') {
    access = '';
    keep();
    ended();
  }
  throw new Refused(problem);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send('GET', path, { signal })).json();
}

export async function post<T>(path: string, body?: unknown): Promise<T> {
  const r = await send('POST', path, { body });
  return (r.status === 204 ? undefined : await r.json()) as T;
}

/** All items of a list, at most limit. */
export async function list<T>(path: string, limit = 5000): Promise<Page<T>> {
  const p = await get<Page<T>>(path + (path.includes('?') ? '&' : '?') + 'limit=' + limit);
  return { ...p, items: p.items || [] };
}

/** An id as a segment of a path. */
export function segment(id: string): string {
  return encodeURIComponent(id.replace(/[/#]/g, '~'));
}
