// Documents of custom kinds and resources as YAML. It is loaded when an editor is first opened.
import { CORE_SCHEMA, dump, load, YAMLException } from 'js-yaml';

export function toYAML(value: unknown): string {
  return dump(value, { noRefs: true, lineWidth: 100 });
}

/** The value of a text in YAML, which JSON is, too. Its errors name the line. */
export function fromYAML(text: string): unknown {
  try {
    return load(text, { schema: CORE_SCHEMA, maxAliases: 100 });
  } catch (e) {
    if (e instanceof YAMLException) throw new Error((e.mark ? 'line ' + (e.mark.line + 1) + ': ' : '') + e.reason);
    throw e;
  }
}
