// Tokens with which machines join.
import { useState } from 'preact/hooks';
import type { Cluster, JoinToken } from '../types';
import { post, tier } from '../http';
import { may } from '../may';
import { clean } from '../text';
import { useLive } from './basics';
import { field, Maker } from './maker';

/** Makes a join token. node is the cluster of which it is a node; without it the user chooses. */
export function JoinForm({ node, made }: { node?: string; made?: () => void }) {
  const clusters = useLive().list('cluster').filter((c: Cluster) => may('joins', c.tenant || ''));
  const own = tier === 'cluster';
  const [kind, choose] = useState('');
  const asks = !own && node === undefined;
  const forNode = !asks || (kind || (clusters.length > 0 ? 'node' : 'cluster')) === 'node';
  return (
    <Maker
      name="Create join token"
      show="Run this as root on the machine that joins. The token is shown once:"
      make={async (f) => {
        const t = await post<JoinToken>('/v1/tokens', {
          ...(own ? {} : { kind: forNode ? 'node' : 'cluster', cluster: node ?? field(f, forNode ? 'cluster' : 'new-cluster') }),
          uses: Number(field(f, 'uses')),
          ttl_seconds: 3600 * Number(field(f, 'hours')),
        });
        made?.();
        return t.command || '';
      }}
    >
      {asks && <label>For a <select name="kind" value={forNode ? 'node' : 'cluster'} onChange={(e) => choose(e.currentTarget.value)}><option value="node">node of a cluster</option><option value="cluster">new cluster</option></select></label>}
      {asks && forNode && <label>Cluster <select name="cluster" required>{clusters.map((c) => <option key={c.id} value={c.id}>{clean(c.id)}</option>)}</select></label>}
      {asks && !forNode && <label>Its name <input name="new-cluster" required placeholder="munich" spellcheck={false} autocapitalize="none" /></label>}
      <label>Uses <input name="uses" type="number" min="1" required defaultValue="1" /></label>
      <label>Valid for hours <input name="hours" type="number" min="1" max="720" required defaultValue="1" /></label>
    </Maker>
  );
}
