// Package examples tests the example schedulers in other languages with the test suite of the
// built-in plugins. See its README.
//
//	scheduler: wasm:/etc/treeline/quiet.wasm
package examples
