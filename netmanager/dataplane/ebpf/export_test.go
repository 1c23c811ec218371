package ebpf

// NewClassifier is New as on a kernel without tcx.
func NewClassifier(prefix string) (*Plane, error) {
	p, err := New(prefix)
	if err == nil {
		p.at = classifier{}
	}
	return p, err
}
