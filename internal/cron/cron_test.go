package cron

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func TestNextTimes(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct{ name, spec, zone, after, want string }{
		{"daily", "0 3 * * *", "", "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z 2026-01-03T03:00:00Z"},
		{"@daily", "@daily", "Asia/Tokyo", "2026-01-01T00:00:00Z", "2026-01-01T15:00:00Z 2026-01-02T15:00:00Z"},
		{"a leap day", "0 0 29 2 *", "", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"summer and winter", "30 6 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", "2026-03-28T05:30:00Z 2026-03-29T04:30:00Z"},
		// 2026-03-29: at 02:00 clocks in Berlin are set to 03:00.
		{"a time that is skipped", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z 2026-03-30T00:30:00Z"},
		{"a skipped time and the moment of the change", "0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z 2026-03-29T01:30:00Z 2026-03-30T00:00:00Z"},
		// 2026-10-25: at 03:00 clocks are set to 02:00.
		{"a time that comes twice", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-26T01:30:00Z"},
		{"hourly, clocks set back", "15 * * * *", "Europe/Berlin", "2026-10-24T23:59:00Z", "2026-10-25T00:15:00Z 2026-10-25T01:15:00Z 2026-10-25T02:15:00Z"},
		{"every half hour, clocks set forward", "*/30 * * * *", "Europe/Berlin", "2026-03-29T00:40:00Z", "2026-03-29T01:00:00Z 2026-03-29T01:30:00Z"},
		// Lord Howe's clocks change by half an hour.
		{"half an hour", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", "2026-04-04T14:45:00Z 2026-04-05T15:15:00Z"},
	} {
		s, err := Parse(c.spec, c.zone)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, v := range s.Times(at(c.after), len(strings.Fields(c.want))) {
			got = append(got, v.Format(time.RFC3339))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %s in %s after %s: %s, want %s", c.name, c.spec, c.zone, c.after, text, c.want)
		}
	}
}

// Every time of a year comes once and in order, in zones whose clocks change.
func TestTimesIncrease(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Pacific/Apia"} {
		s, err := Parse("*/15 0-4 * * *", zone)
		if err != nil {
			t.Fatal(err)
		}
		for at, n := time.Date(2011, 6, 1, 0, 0, 0, 0, time.UTC), 0; n < 8000; n++ {
			next := s.Next(at)
			if !next.After(at) || next.Sub(at) > 49*time.Hour {
				t.Fatalf("%s: after %s comes %s", zone, at, next)
			}
			at = next
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	for spec, want := range map[string]string{
		"":                        "",
		"* * * *":                 "expected exactly 5 fields",
		"60 * * * *":              "above maximum",
		"@every 5m":               "depends on when it begins",
		"TZ=UTC 0 * * * *":        "time_zone",
		"CRON_TZ=":                "time_zone",
		"@reboot":                 "",
		strings.Repeat("1,", 100): "bytes",
	} {
		if _, err := Parse(spec, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", spec, err, want)
		}
	}
	for _, zone := range []string{"Local", "Mars/Base", "../etc/passwd"} {
		if _, err := Parse("@daily", zone); err == nil || !strings.Contains(err.Error(), "unknown time zone") {
			t.Errorf("zone %q: %v", zone, err)
		}
	}
	if s, err := Parse("0 0 31 2 *", ""); err != nil || !s.Next(time.Now()).IsZero() {
		t.Errorf("31 February: %v, want no time", err)
	}
}

func TestFaultsOfSchedules(t *testing.T) {
	for want, s := range map[string]api.Schedule{
		`schedule/cron: "0 0 31 2 *" never fires: no day within five years matches it; correct the day`:                   {Cron: "0 0 31 2 *"},
		`schedule/cron: "0 0 30 feb *" never fires`:                                                                       {Cron: "0 0 30 feb *", TimeZone: "Europe/Berlin"},
		`schedule/cron: "61 * * * *": end of range (61) above maximum (59): 61; five fields`:                              {Cron: "61 * * * *"},
		`schedule/time_zone: unknown time zone "Berlin": use a name such as Europe/Berlin or UTC; use a name of the IANA`: {Cron: "@daily", TimeZone: "Berlin"},
		"": {Cron: "30 2 29 2 *", TimeZone: "Asia/Tokyo", Suspend: true},
	} {
		sla := api.SLA{Applications: []api.Application{{Services: []api.Microservice{{}, {Schedule: &s}}}}}
		err := Check(sla, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "/applications/0/microservices/1/"+want)) {
			t.Errorf("%+v: %v, want %s", s, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*/5 1-3 * jan mon", "Europe/Berlin")
	f.Fuzz(func(t *testing.T, spec, zone string) {
		s, err := Parse(spec, zone)
		if err != nil {
			return
		}
		from := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		if next := s.Next(from); !next.IsZero() && !next.After(from) {
			t.Errorf("%q in %q: %s is not after %s", spec, zone, next, from)
		}
	})
}
