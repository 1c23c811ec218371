// Package rules tests the rules of docs/architecture.md on the source: the direction of
// imports, the purity of cores, external modules behind adapters, and comments on packages
// and exported names. It has tests only. A failing rule prints its reason. A folder in a
// table need not exist yet.
package rules
