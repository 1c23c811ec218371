// Package examples tests the example schedulers in other languages with the suite that
// the built-in plugins pass. See its README.
//
//	scheduler: wasm:/etc/treeline/quiet.wasm
package examples
