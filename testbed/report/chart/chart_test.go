package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestDrawingIsWellFormedWhateverItIsGiven(t *testing.T) {
	bars := []Bar{
		{Label: "raw <veth> & co", Value: 31.5, Low: 30, High: 33},
		{Label: "ours", Value: 7, Limit: 9, Tone: Ours, Text: "7.0 of 9"},
		{Label: "nothing", Tone: Fail},
		{Label: "odd", Value: math.NaN(), High: math.Inf(1)},
		{Label: "below", Value: -4, Low: -5, High: -3},
	}
	for _, panels := range [][]Panel{nil, {{Title: "empty"}}, {{Title: "t", Unit: "Gbit/s", Bars: bars}, {Bars: bars, Own: true}}} {
		var out bytes.Buffer
		if err := Draw(&out, "a \"title\"", panels); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), `="NaN`) {
			t.Error("a coordinate is not a number")
		}
		dec := xml.NewDecoder(&out)
		for {
			_, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDrawSaysThatItCouldNotWrite(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	if err := Draw(w, "t", nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// The longest bar ends where its text still fits.
func TestBarsKeepTheirProportions(t *testing.T) {
	var out bytes.Buffer
	if err := Draw(&out, "t", []Panel{{Bars: []Bar{{Label: "one", Value: 10}, {Label: "half", Value: 5}}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`width="369.5"`, `width="184.8"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want a bar with %s in\n%s", want, out.String())
		}
	}
}
