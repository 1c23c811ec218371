// Texts and numbers for people.
import { serverNow } from './http';

// Control characters, and those that change the direction of text or are invisible: names and
// messages come from other people's clusters and workloads.
const unsafe = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
// eslint-disable-next-line no-control-regex
const escapes = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~])/g;

/** The text without escape sequences, and with a mark for each unsafe character. */
export function clean(text: string | undefined): string {
  return (text || '').replace(escapes, '').replace(unsafe, '\ufffd');
}

export function age(time: string | undefined): string {
  if (!time) return '';
  return duration(Math.max(0, serverNow() - Date.parse(time)));
}

export function duration(ms: number): string {
  if (!isFinite(ms)) return '';
  if (ms < 1000) return Math.round(ms) + ' ms';
  const s = ms / 1000;
  if (s < 10) return s.toFixed(1) + ' s';
  if (s < 120) return Math.round(s) + ' s';
  if (s < 7200) return Math.round(s / 60) + ' min';
  if (s < 172_800) return Math.round(s / 3600) + ' h';
  return Math.round(s / 86_400) + ' d';
}

export function clock(time: string): string {
  const d = new Date(time);
  return isNaN(+d) ? '' : d.toLocaleTimeString('en-GB') + '.' + String(d.getMilliseconds()).padStart(3, '0');
}

export function cpus(milli: number): string {
  return (milli / 1000).toLocaleString('en', { maximumFractionDigits: 2 });
}

export function memory(mb: number): string {
  return mb >= 10_240 ? (mb / 1024).toLocaleString('en', { maximumFractionDigits: 1 }) + ' GiB' : mb.toLocaleString('en') + ' MiB';
}

export function bytes(n: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return n.toLocaleString('en', { maximumFractionDigits: n < 10 && unit > 0 ? 1 : 0 }) + ' ' + units[unit];
}

/** The last part of an id: shop.prod of acme/shop.prod. */
export function short(id: string): string {
  return id.slice(id.lastIndexOf('/') + 1);
}

/** The service of an instance's id, and the application of a service's. */
export function serviceOf(instance: string): string {
  return instance.replace(/#\d+$/, '');
}

export function count(n: number, what: string): string {
  return n.toLocaleString('en') + ' ' + what + (n === 1 ? '' : 's');
}
