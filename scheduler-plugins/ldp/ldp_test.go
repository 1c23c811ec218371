package ldp_test

import (
	"testing"

	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
)

func TestSuite(t *testing.T) { plugintest.Run(t, ldp.Plugin{}) }
