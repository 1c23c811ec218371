// Package guest defines what a virtual machine finds in its initial file system. It imports the standard
// library only, so that a guest's init can use it.
package guest

// File is the path of the parameters, as JSON.
const File = "/treeline.json"

// ExitPort is the I/O port at which a guest ends its machine with an exit code of 1 to 127. A guest that
// powers off ends with 0.
const ExitPort = 0xf4

// Parameters are the content of File.
type Parameters struct {
	Args     []string `json:"args"`
	Env      []string `json:"env"` // name=value
	Hostname string   `json:"hostname"`
	Network  *Network `json:"network,omitempty"` // nil: none
}

// Network is the network of the guest's only interface.
type Network struct {
	Address  string `json:"address"` // with the length of the prefix
	Gateway  string `json:"gateway"`
	Address6 string `json:"address6,omitempty"`
	Gateway6 string `json:"gateway6,omitempty"`
	MTU      int    `json:"mtu"`
	MAC      string `json:"mac"`
	Resolver string `json:"resolver"`
}
