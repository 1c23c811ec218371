// The frames of streams to workloads: kind (1 byte), length (2 bytes, big endian), payload.

export const Kind = { input: 1, output: 2, errors: 3, size: 4, end: 5, exit: 6, problem: 7 };

const maxPayload = 32 << 10;

export function encode(kind: number, payload: Uint8Array): Uint8Array {
  const parts = Math.max(1, Math.ceil(payload.length / maxPayload));
  const out = new Uint8Array(payload.length + 3 * parts);
  for (let n = 0, at = 0; n < parts; n++) {
    const part = payload.subarray(n * maxPayload, (n + 1) * maxPayload);
    out.set([kind, part.length >> 8, part.length & 255], at);
    out.set(part, at + 3);
    at += 3 + part.length;
  }
  return out;
}

export function size(columns: number, rows: number): Uint8Array {
  return encode(Kind.size, new Uint8Array([columns >> 8, columns & 255, rows >> 8, rows & 255]));
}

/** Divides bytes, which come in pieces of any size, into frames. */
export class Decoder {
  private rest = new Uint8Array(0);

  add(bytes: Uint8Array, frame: (kind: number, payload: Uint8Array) => void) {
    const all = new Uint8Array(this.rest.length + bytes.length);
    all.set(this.rest);
    all.set(bytes, this.rest.length);
    let at = 0;
    while (all.length - at >= 3) {
      const length = (all[at + 1] << 8) | all[at + 2];
      if (all.length - at < 3 + length) break;
      frame(all[at], all.subarray(at + 3, at + 3 + length));
      at += 3 + length;
    }
    this.rest = all.slice(at);
  }
}
