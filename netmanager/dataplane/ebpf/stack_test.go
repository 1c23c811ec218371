package ebpf

import (
	"testing"

	"github.com/cilium/ebpf/asm"
)

// The kernel adds up the stacks of functions that call one another, and accepts at most 512 bytes.
// Older kernels round each stack up to 32 bytes.
func TestStacksFitOlderKernels(t *testing.T) {
	spec, err := loadObjects()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		stacks, calls := map[string]int{}, map[string][]string{}
		function := ""
		for _, in := range p.Instructions {
			if s := in.Symbol(); s != "" {
				function = s
			}
			stacks[function] = max(stacks[function], stackOf(in))
			if in.IsFunctionCall() {
				calls[function] = append(calls[function], in.Reference())
			}
		}
		var deepest func(string) int
		deepest = func(function string) int {
			most := 0
			for _, f := range calls[function] {
				most = max(most, deepest(f))
			}
			return max(1, (stacks[function]+31)/32)*32 + most
		}
		got := deepest(p.Instructions.Name())
		t.Logf("%s takes %d bytes", name, got)
		if got > 512 || got < 200 && name != "tl_end" {
			t.Errorf("%s takes %d bytes, in functions %v", name, got, stacks)
		}
	}
}

// stackOf returns how far below the frame an instruction reaches, with a load or store, or by taking
// an address.
func stackOf(in asm.Instruction) int {
	switch class := in.OpCode.Class(); {
	case class.IsStore() && in.Dst == asm.RFP, class.IsLoad() && in.Src == asm.RFP:
		return -int(in.Offset)
	case class == asm.ALU64Class && in.OpCode.ALUOp() == asm.Add && in.OpCode.Source() == asm.ImmSource && in.Constant < 0 && in.Constant > -512:
		return -int(in.Constant)
	}
	return 0
}
