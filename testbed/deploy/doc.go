// Package deploy tests the files in deploy/: the sample configurations are generated from the
// programs' defaults, the parser accepts the example SLAs, systemd accepts the units, and the install
// script puts files where the units expect them.
//
// To generate the sample configurations:
//
//	go generate ./testbed/deploy
package deploy

//go:generate go test . -run "AreFresh|IsFresh" -update
