// Package rules proves the house rules of docs/architecture.md on the source
// itself: who may import whom, that cores are pure, that outside modules stay
// behind their adapters, and that every package and exported name says what it
// is. It holds tests only. A rule that fails prints its reason; a room that does
// not exist yet is picked up when it does.
package rules
