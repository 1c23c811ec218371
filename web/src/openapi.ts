// What the page about the API reads of an OpenAPI document, and examples by its schemas.

export interface Schema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  examples?: unknown[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: Schema | boolean;
  oneOf?: Schema[];
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  pattern?: string;
}

export interface Media {
  schema?: Schema;
  example?: unknown;
}

export interface Parameter {
  name: string;
  in: string;
  description?: string;
  required?: boolean;
  example?: unknown;
  schema?: Schema;
}

export interface Operation {
  operationId: string;
  summary: string;
  description?: string;
  tags: string[];
  parameters?: Parameter[];
  requestBody?: { content: Record<string, Media>; required?: boolean };
  responses: Record<string, { description: string; content?: Record<string, Media>; headers?: Record<string, { schema?: Schema }> }>;
  security?: unknown[];
}

export interface Described extends Operation {
  method: string;
  path: string;
}

export interface Document {
  info: { title: string; version: string; description: string };
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema> };
}

const order = ['get', 'post', 'put', 'patch', 'delete'];

/** The operations by tag, in the order of their paths. */
export function groups(d: Document): [tag: string, operations: Described[]][] {
  const all = new Map<string, Described[]>();
  for (const path of Object.keys(d.paths).sort())
    for (const method of order) {
      const op = d.paths[path][method];
      if (!op) continue;
      const tag = op.tags[0];
      all.set(tag, [...(all.get(tag) || []), { ...op, method: method.toUpperCase(), path }]);
    }
  return [...all].sort(([a], [b]) => (a < b ? -1 : 1));
}

export function nameOf(ref: string): string {
  return ref.slice(ref.lastIndexOf('/') + 1);
}

/** The schema itself, and its name if it has one. */
export function resolve(d: Document, s: Schema): [schema: Schema, name: string] {
  if (!s.$ref) return [s, ''];
  const name = nameOf(s.$ref);
  return [d.components.schemas[name] || {}, name];
}

export function kindOf(s: Schema): string {
  return Array.isArray(s.type) ? s.type.find((t) => t !== 'null') || '' : s.type || '';
}

/** A short text for a type: string, Node[], map of string. */
export function typeText(s?: Schema): string {
  if (!s) return '';
  if (s.$ref) return nameOf(s.$ref);
  const kind = kindOf(s);
  if (kind === 'array') return typeText(s.items) + '[]';
  if (s.oneOf) return s.oneOf.map(typeText).join(' or ');
  if (kind === 'object' && typeof s.additionalProperties === 'object') return 'map of ' + typeText(s.additionalProperties);
  return s.format && !/^u?int|^double|^float/.test(s.format) ? kind + ' (' + s.format + ')' : kind || 'any';
}

/** What bounds a value. */
export function bounds(s: Schema): string {
  const of: string[] = [];
  if (s.enum) of.push('one of ' + s.enum.join(', '));
  if (s.minimum !== undefined && s.maximum !== undefined) of.push(s.minimum + ' to ' + s.maximum);
  else if (s.minimum !== undefined) of.push('at least ' + s.minimum);
  else if (s.maximum !== undefined) of.push('at most ' + s.maximum);
  if (s.maxLength !== undefined) of.push('at most ' + s.maxLength + ' characters');
  if (s.maxItems !== undefined) of.push('at most ' + s.maxItems + ' items');
  if (s.pattern) of.push('like ' + s.pattern);
  if (s.default !== undefined) of.push('default ' + JSON.stringify(s.default));
  return of.join('; ');
}

/** An example of a schema: required properties, and the first few of the others. */
export function example(d: Document, s: Schema | undefined, seen: string[] = []): unknown {
  if (!s) return null;
  const [schema, name] = resolve(d, s);
  if (schema.examples?.length) return schema.examples[0];
  if (schema.default !== undefined) return schema.default;
  if (schema.enum?.length) return schema.enum[0];
  if (schema.oneOf) return example(d, schema.oneOf[0], seen);
  if (name && seen.includes(name)) return {};
  const inner = name ? [...seen, name] : seen;
  switch (kindOf(schema)) {
    case 'array':
      return inner.length > 4 ? [] : [example(d, schema.items, inner)];
    case 'object': {
      const out: Record<string, unknown> = {};
      const deep = inner.length > 2;
      for (const [key, p] of Object.entries(schema.properties || {})) if (schema.required?.includes(key) || !deep) out[key] = example(d, p, inner);
      if (typeof schema.additionalProperties === 'object' && !schema.properties) out.key = example(d, schema.additionalProperties, inner);
      return out;
    }
    case 'boolean':
      return true;
    case 'integer':
    case 'number':
      return Math.max(1, schema.minimum || 0);
    case 'string':
      if (schema.format === 'date-time') return '2026-11-24T14:00:00Z';
      return 'string';
  }
  return null;
}
