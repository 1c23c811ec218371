package sim

import "time"

// clock is a machine's clock. It runs too fast or too slow by parts per million and has an
// offset.
type clock struct {
	offset time.Duration
	ppm    int64
}

var dawn = time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *clock) at(t moment) time.Time {
	return dawn.Add(c.offset + t + moment(int64(t)/1000*c.ppm/1000))
}

// takes returns the true duration in which the clock advances by d.
func (c *clock) takes(d time.Duration) time.Duration {
	return d / time.Duration(1_000_000+c.ppm) * 1_000_000
}

// when returns the true time at which the clock shows local, or slightly later, never
// earlier.
func (c *clock) when(local time.Time) moment {
	d := int64(local.Sub(dawn) - c.offset)
	t := moment(d / (1_000_000 + c.ppm) * 1_000_000)
	for c.at(t + time.Second).Before(local) {
		t += time.Second
	}
	for step := moment(time.Second); step > 0; step /= 10 {
		for c.at(t + step).Before(local) {
			t += step
		}
	}
	return t + 10
}
