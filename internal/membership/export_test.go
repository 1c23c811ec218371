package membership

// Kill ends g as a crash does.
func (g *Gossip) Kill() error {
	err := g.serf.Shutdown()
	g.work.Wait()
	return err
}
