// What the user may see, so that the page does not ask for what is refused. The server decides.
import type { User } from './http';

const organization = 'Organization_Admin';
const developer = 'Application_Provider';
const operator = 'Infrastructure_Provider';

const roles = {
  apps: [organization, developer],
  events: [organization, developer, operator],
  clusters: [organization, developer, operator],
  nodes: [organization, operator],
  joins: [organization, operator],
  users: [organization],
};

let me: User = { user: '', tenant: '', roles: [] };

export function setUser(u: User) {
  me = u;
}

/** Whether the user may read or change such objects of a tenant, or of any if tenant is undefined. */
export function may(what: keyof typeof roles, tenant?: string): boolean {
  const admin = me.roles.includes('Admin');
  if (admin && !me.tenant) return true;
  const sees = tenant === undefined || tenant === me.tenant || (me.tenant !== '' && tenant.startsWith(me.tenant + '/'));
  return sees && (admin || roles[what].some((r) => me.roles.includes(r)));
}

/** Whether the user is an administrator of the installation. */
export function isAdmin(): boolean {
  return me.roles.includes('Admin') && !me.tenant;
}
