import { Joins } from '../access';

export function OwnAccess() {
  return (
    <>
      <h1>Access</h1>
      <Joins />
    </>
  );
}
