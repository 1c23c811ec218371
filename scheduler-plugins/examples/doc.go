// Package examples holds schedulers that are written in other languages, and the
// tests that they stand as well as those of the house. See its README.
//
//	scheduler: wasm:/etc/treeline/quiet.wasm
package examples
