package api

// The values of `virtualization` that Treeline itself knows. Others are names of handlers of containerd.
const (
	Container = "container"
	Process   = "process"
	MicroVM   = "microvm"
	Unikernel = "unikernel"
)

// crosvm is Oakestra's runtime of virtual machines with a disk and a virtual GPU. It is refused: such a service would
// wait forever for a node that offers it.
const crosvm = "crosvm"

// MinVMMemory is the least memory of a virtual machine in MiB, of which QEMU needs a part itself.
const MinVMMemory = 128

// IsVM reports whether the service's instances are virtual machines.
func (m Microservice) IsVM() bool { return isVM(m.Virtualization) }

func isVM(virtualization string) bool {
	return virtualization == MicroVM || virtualization == Unikernel
}
