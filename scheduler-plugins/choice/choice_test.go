package choice_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
)

func TestASettingNamesABuiltInOrOneOutsideOrNothing(t *testing.T) {
	for setting, want := range map[string]struct{ builtIn, outside bool }{
		"rom": {true, false}, "ldp": {true, false}, "spread": {true, false}, "binpack": {true, false},
		"http://brain:80": {false, true}, "https://brain/rank": {false, true},
		"": {}, "ROM": {}, "roma": {}, "brain:80": {}, "/lib/best.wasm": {},
	} {
		p := choice.BuiltIn(setting)
		if (p != nil) != want.builtIn || p != nil && p.Name() != setting {
			t.Errorf("%q is the built-in %v", setting, p)
		}
		err := choice.Validate(setting)
		if ok := want.builtIn || want.outside; (err == nil) != ok || !ok && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q: %v", setting, err)
		}
		out, err := choice.Open(t.Context(), setting)
		if (out != nil) != want.outside || err != nil {
			t.Errorf("%q opens %v: %v", setting, out, err)
		}
		if out != nil {
			_ = out.Close(t.Context())
		}
	}
}

func TestWhatIsWrongSaysWhatThereIs(t *testing.T) {
	if err := choice.Validate("roma"); !strings.HasPrefix(err.Error(), `scheduler: "roma" is none of binpack, ldp, rom, spread, wasm:/path/to/module or an http`) {
		t.Error(err)
	}
	if out, err := choice.Open(t.Context(), "wasm:"+t.TempDir()+"/none.wasm"); err == nil || out != nil {
		t.Errorf("a module that is not there opens %v: %v", out, err)
	}
}
