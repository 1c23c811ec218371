import { tier } from '../http';
import { Command } from '../parts/basics';

export function Rest() {
  return (
    <>
      <h1>API</h1>
      <p>Everything here is done with the REST API of this {tier}, which programs use with a personal token (page Access).</p>
      <ul>
        {tier === 'root' && <li><a href="/v1/docs">Operations</a></li>}
        <li><a href="/v1/openapi.json">OpenAPI document</a></li>
      </ul>
      <h2>Try it</h2>
      <Command text={'curl --cacert ca.crt -H "Authorization: Bearer $TREELINE_TOKEN" ' + location.origin + (tier === 'root' ? '/v1/apps' : '/v1/nodes')} />
      <h2>Follow changes</h2>
      {tier === 'root' && <Command text={'curl -N --cacert ca.crt -H "Authorization: Bearer $TREELINE_TOKEN" ' + location.origin + '/v1/changes'} />}
    </>
  );
}
