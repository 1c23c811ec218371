// Package deploy holds what deploy/ ships against the programs that it is for:
// the sample configurations are written from the programs' own defaults, the
// examples are SLAs that the parser takes, the units are what systemd
// understands, and the install script puts files where the units look for them.
//
// To write the sample configurations anew:
//
//	go generate ./testbed/deploy
package deploy

//go:generate go test . -run TestSamplesAreFresh -update
