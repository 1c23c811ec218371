// A terminal of a process in a workload, over a WebSocket. It is loaded when it is first opened.
import { Terminal } from '@xterm/xterm';
import { Decoder, encode, Kind, size } from './frames';
import { bearer, segment } from './http';
import { clean } from './text';

const maxPending = 4 << 20; // bytes of output that are not shown yet

function measure(box: HTMLElement, font: string): { cols: number; rows: number } {
  const c = document.createElement('canvas').getContext('2d')!;
  c.font = '14px ' + font;
  return { cols: Math.max(20, Math.floor((box.clientWidth - 24) / c.measureText('W').width)), rows: 24 };
}

/** Opens a terminal in the box. It calls ended with the result; the returned function closes it. */
export async function openTerminal(box: HTMLElement, instance: string, args: string[], ended: (result: string) => void): Promise<() => void> {
  const font = getComputedStyle(document.documentElement).getPropertyValue('--mono').trim() || 'monospace';
  const term = new Terminal({
    ...measure(box, font),
    fontFamily: font,
    fontSize: 14,
    cursorBlink: false,
    scrollback: 2000,
    screenReaderMode: true,
    theme: { background: '#14191d', foreground: '#e6ebe8' },
    linkHandler: { activate: () => {} }, // links are of the workload
  });
  term.open(box);
  const query = new URLSearchParams({ tty: 'true', stdin: 'true', width: String(term.cols), height: String(term.rows) });
  for (const a of args) query.append('arg', a);
  // Browsers cannot set the header Authorization of a WebSocket.
  const socket = new WebSocket('wss://' + location.host + '/v1/instances/' + segment(instance) + '/exec?' + query, ['treeline.v1', 'treeline.token.' + (await bearer())]);
  socket.binaryType = 'arraybuffer';
  const decoder = new Decoder();
  let result = '';
  let pending = 0;
  const end = (text: string) => {
    if (result) return;
    result = text;
    ended(text);
  };
  socket.onmessage = (e) =>
    decoder.add(new Uint8Array(e.data as ArrayBuffer), (kind, payload) => {
      if (kind === Kind.output || kind === Kind.errors) {
        pending += payload.length;
        if (pending > maxPending) {
          // WebSockets have no flow control that a page can use.
          end('closed: the output came faster than it can be shown');
          socket.close();
          return;
        }
        term.write(payload.slice(), () => (pending -= payload.length));
      } else if (kind === Kind.exit && payload.length >= 4) {
        end('ended with exit code ' + new DataView(payload.buffer, payload.byteOffset).getInt32(0));
      } else if (kind === Kind.problem) {
        let text = 'failed';
        try {
          text = JSON.parse(new TextDecoder().decode(payload)).detail || text;
        } catch {
          // the kind of the frame says enough
        }
        end('failed: ' + clean(text));
      }
    });
  socket.onclose = (e) => end(e.reason ? 'closed: ' + clean(e.reason) : e.code === 1006 ? 'refused, or the connection broke' : 'closed');
  const send = (data: Uint8Array) => socket.readyState === WebSocket.OPEN && socket.send(data);
  term.onData((text) => send(encode(Kind.input, new TextEncoder().encode(text))));
  term.onResize(({ cols, rows }) => send(size(cols, rows)));
  const resized = new ResizeObserver(() => {
    const { cols, rows } = measure(box, font);
    if (cols !== term.cols) term.resize(cols, rows);
  });
  resized.observe(box);
  box.scrollIntoView({ block: 'nearest' });
  term.focus();
  return () => {
    resized.disconnect();
    socket.close();
    term.dispose();
  };
}
