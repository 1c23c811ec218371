// The part of js-yaml that the dashboard uses.
export interface Schema {
  readonly __schema?: never;
}
export const CORE_SCHEMA: Schema;
export function load(text: string, options?: { schema?: Schema; maxAliases?: number }): unknown;
export function dump(value: unknown, options?: { noRefs?: boolean; lineWidth?: number }): string;
export class YAMLException extends Error {
  reason: string;
  mark?: { line: number; column: number };
}
