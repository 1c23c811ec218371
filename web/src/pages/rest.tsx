import { tier } from '../http';
import { Command } from '../parts/basics';
import { Operations } from '../parts/operations';

/** The page about the REST API, also without a session. */
export function Rest({ signedIn = true }: { signedIn?: boolean }) {
  return (
    <>
      <h1>API</h1>
      <p>
        Everything here is done with the REST API of this {tier}, which programs use with a {tier === 'root' ? <>personal token</> : <>token of the operator</>}.{' '}
        <a href="/docs/reference/api">How to use it</a> · <a href="/v1/openapi.json">OpenAPI document</a>
      </p>
      {tier === 'root' && <Command text={'curl -N --cacert ca.pem -H "Authorization: Bearer $TREELINE_TOKEN" ' + location.origin + '/v1/changes'} />}
      <Operations signedIn={signedIn} />
    </>
  );
}
