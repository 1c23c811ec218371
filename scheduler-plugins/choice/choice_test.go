package choice_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
)

func TestSettingNamesABuiltInOrExternalScheduler(t *testing.T) {
	for setting, want := range map[string]struct{ builtIn, external bool }{
		"rom": {true, false}, "ldp": {true, false}, "spread": {true, false}, "binpack": {true, false},
		"http://brain:80": {false, true}, "https://brain/rank": {false, true},
		"": {}, "ROM": {}, "roma": {}, "brain:80": {}, "/lib/best.wasm": {},
	} {
		p := choice.BuiltIn(setting)
		if (p != nil) != want.builtIn || p != nil && p.Name() != setting {
			t.Errorf("%q is the built-in %v, want built-in: %v", setting, p, want.builtIn)
		}
		err := choice.Validate(setting)
		if ok := want.builtIn || want.external; (err == nil) != ok || !ok && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("Validate(%q) = %v, want success: %v", setting, err, ok)
		}
		ext, err := choice.Open(t.Context(), setting)
		if (ext != nil) != want.external || err != nil {
			t.Errorf("%q opens %v with error %v, want external: %v", setting, ext, err, want.external)
		}
		if ext != nil {
			_ = ext.Close(t.Context())
		}
	}
}

func TestInvalidSettingListsTheValidOnes(t *testing.T) {
	if err := choice.Validate("roma"); !strings.HasPrefix(err.Error(), `scheduler: "roma" is none of binpack, ldp, rom, spread, wasm:/path/to/module or an http`) {
		t.Error(err)
	}
	if ext, err := choice.Open(t.Context(), "wasm:"+t.TempDir()+"/none.wasm"); err == nil || ext != nil {
		t.Errorf("a missing module opens %v: %v", ext, err)
	}
}
