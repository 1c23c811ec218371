package mqtt_test

import (
	"testing"

	"github.com/treeline-edge/treeline/internal/bus/bustest"
)

func TestMosquitto(t *testing.T) {
	bustest.Run(t, bustest.Deviations{SilentRefusal: true}, func(t *testing.T) bustest.System {
		return bustest.StartMosquitto(t, "../../../deploy/mosquitto")
	})
}
