package parts_test

import (
	"bytes"
	"fmt"

	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/parts"
)

func ExampleJoiner() {
	message := bytes.Repeat([]byte("{"), bus.MaxPayload+1)
	all, err := parts.Split(message) // publish each, in this order
	if err != nil {
		fmt.Println(err)
		return
	}
	var joiner parts.Joiner
	for _, payload := range all { // as received
		if whole, ok := joiner.Add(payload); ok {
			fmt.Println(len(all), "parts,", bytes.Equal(whole, message))
		}
	}
	// Output: 2 parts, true
}
