// Pages have URLs in the fragment, so that the server needs no routes: #/service/acme%2Fshop.prod.web.v1
import { useEffect, useState } from 'preact/hooks';

export interface Route {
  page: string;
  id: string;
  more: string;
}

function parse(): Route {
  const parts = location.hash.replace(/^#\/?/, '').split('/');
  const [page = '', id = '', more = ''] = parts.map((p) => {
    try {
      return decodeURIComponent(p);
    } catch {
      return '';
    }
  });
  return { page, id, more };
}

export function useRoute(): Route {
  const [route, set] = useState(parse);
  useEffect(() => {
    const changed = () => set(parse());
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return route;
}

/** The URL of a page. Ids are of other people: they never become more than one segment. */
export function to(page: string, id = '', more = ''): string {
  let url = '#/' + page;
  if (id) url += '/' + encodeURIComponent(id);
  if (more) url += '/' + encodeURIComponent(more);
  return url;
}
