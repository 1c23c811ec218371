// Package faults injects each fault of a matrix into each component of a busy installation, and
// checks what must hold afterwards. Table has the cells, scripts/soak runs them all, mixes them at
// random, and writes docs/faults.md.
//
// After each fault, within a bound:
//   - each instance runs once, as the root shows it (lab.AsShown);
//   - no acknowledged write to the root is lost (lab.Writes);
//   - requests by name from another node are answered (lab.Numbered);
//   - an exclusive instance never ran twice.
package faults
