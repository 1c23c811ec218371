// Scripts of the documentation's pages: search, and buttons that copy commands. The pages work without them.
export {};

type Part = [page: string, heading: string, url: string, text: string];

const field = document.getElementById('search') as HTMLInputElement;
const found = document.getElementById('found')!;
const article = document.querySelector('article')!;
const contents = document.querySelector<HTMLDetailsElement>('.contents details');

if (contents && matchMedia('(max-width: 60rem)').matches) contents.open = false;

for (const pre of document.querySelectorAll('pre.commands')) {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'copy';
  button.textContent = 'Copy';
  button.onclick = () => void navigator.clipboard?.writeText((pre.textContent || '') + '\n').then(() => (button.textContent = 'Copied'));
  const block = document.createElement('div');
  block.className = 'block';
  pre.replaceWith(block);
  block.append(pre, button);
}

let parts: Promise<Part[]> | undefined;

/** The text of all pages, from the first use of the search on. */
function load(): Promise<Part[]> {
  parts ||= fetch('/docs/search.json', { credentials: 'omit' }).then((r) => {
    if (!r.ok) throw new Error('status ' + r.status);
    return r.json();
  });
  parts.catch(() => (parts = undefined));
  return parts;
}

function search(all: Part[], words: string[]): Part[] {
  const ranked: [rank: number, part: Part][] = [];
  for (const part of all) {
    const [page, heading, , text] = part.map((t) => t.toLowerCase());
    let rank = 0;
    for (const w of words) {
      const r = (heading.includes(w) ? 20 : 0) + (page.includes(w) ? 10 : 0) + Math.min(5, text.split(w).length - 1);
      if (r === 0) {
        rank = 0;
        break;
      }
      rank += r;
    }
    if (rank > 0) ranked.push([rank, part]);
  }
  return ranked
    .sort((a, b) => b[0] - a[0])
    .slice(0, 30)
    .map(([, p]) => p);
}

/** Text with its words marked. */
function marked(text: string, words: string[]): Node[] {
  const out: Node[] = [];
  const low = text.toLowerCase();
  for (let at = 0; at < text.length; ) {
    let next = -1;
    let word = '';
    for (const w of words) {
      const i = low.indexOf(w, at);
      if (i >= 0 && (next < 0 || i < next)) [next, word] = [i, w];
    }
    if (next < 0) {
      out.push(new Text(text.slice(at)));
      break;
    }
    const mark = document.createElement('mark');
    mark.textContent = text.slice(next, next + word.length);
    out.push(new Text(text.slice(at, next)), mark);
    at = next + word.length;
  }
  return out;
}

function show(list: Part[], words: string[]) {
  const title = document.createElement('h1');
  title.textContent = list.length ? 'Found' : 'Nothing found';
  const results = document.createElement('ol');
  results.className = 'results';
  for (const [page, heading, url, text] of list) {
    const at = Math.max(0, Math.min(...words.map((w) => text.toLowerCase().indexOf(w)).filter((i) => i >= 0)) - 60);
    const from = isFinite(at) ? at : 0;
    const link = document.createElement('a');
    link.href = url;
    link.append(...marked(heading ? page + ' › ' + heading : page, words));
    link.onclick = () => {
      field.value = '';
      hide(false); // it may lead to another heading of this page
    };
    const excerpt = document.createElement('p');
    excerpt.append(...marked((from > 0 ? '…' : '') + text.slice(from, from + 180) + (text.length > from + 180 ? '…' : ''), words));
    const item = document.createElement('li');
    item.append(link, excerpt);
    results.append(item);
  }
  found.replaceChildren(title, results);
}

function hide(searching: boolean) {
  found.hidden = !searching;
  article.hidden = searching;
}

async function run() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return hide(false);
  try {
    const list = search(await load(), words);
    if (field.value.toLowerCase().split(/\s+/).filter(Boolean).join() !== words.join()) return; // typed on meanwhile
    show(list, words);
  } catch {
    found.replaceChildren(new Text('The search could not be loaded.'));
  }
  hide(true);
}

field.disabled = false;
field.addEventListener('input', () => void run());
field.addEventListener('focus', () => void load().catch(() => {}));
field.addEventListener('keydown', (e) => {
  if (e.key === 'Escape') {
    field.value = '';
    hide(false);
  } else if (e.key === 'ArrowDown' || e.key === 'Enter') {
    const first = found.querySelector('a');
    if (!found.hidden && first) {
      e.preventDefault();
      if (e.key === 'Enter') first.click();
      else first.focus();
    }
  }
});
addEventListener('keydown', (e) => {
  if (e.key === '/' && !e.ctrlKey && !e.metaKey && !e.altKey && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || '')) {
    e.preventDefault();
    field.focus();
  }
});
