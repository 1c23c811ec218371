package topic_test

import (
	"fmt"

	"github.com/treeline-edge/treeline/api/topic"
)

func Example() {
	name := topic.Desired.Of("n1")
	fmt.Println(name, topic.Desired.Every())
	node, leaf, ok := topic.Parse(name)
	fmt.Println(node, leaf.Name, ok)
	fmt.Println(topic.MaySubscribe("n1", name), topic.MayPublish("n1", name))
	// Output:
	// nodes/n1/desired nodes/+/desired
	// n1 desired true
	// true false
}
