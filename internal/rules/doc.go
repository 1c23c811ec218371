// Package rules tests that the source follows docs/architecture.md: the direction of imports, the
// purity of cores, external modules behind adapters, and comments on packages.
// It has tests only. A failing rule prints its reason. Directories in tables need not exist.
package rules
