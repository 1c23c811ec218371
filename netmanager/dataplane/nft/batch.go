package nft

import (
	"encoding/binary"
	"iter"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// batch is an nftables transaction in the kernel's encoding: messages of attributes in one
// buffer (linux/netfilter/nfnetlink.h, nf_tables.h). The library encodes a value for each attribute
// and requests an answer to each message, which with 10,000 services takes longer than the kernel.
type batch struct {
	b    []byte
	last int    // offset of the last message
	n    uint32 // number of messages
	err  error
}

func newBatch() *batch {
	x := &batch{}
	x.control(unix.NFNL_MSG_BATCH_BEGIN)
	return x
}

func (x *batch) control(kind uint16) {
	x.message(kind, 0, 0)
	binary.BigEndian.PutUint16(x.b[len(x.b)-2:], unix.NFNL_SUBSYS_NFTABLES)
	x.end()
}

// finish requests an answer to the last message, ends the batch, and returns that message's
// number; 0 if there is none.
func (x *batch) finish() uint32 {
	last := x.n - 1
	flags := x.b[x.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	x.control(unix.NFNL_MSG_BATCH_END)
	return last
}

// message begins a message; end completes it.
func (x *batch) message(kind, flags uint16, f nftables.TableFamily) {
	x.last = len(x.b)
	x.b = append(x.b, 0, 0, 0, 0)
	x.b = binary.NativeEndian.AppendUint16(x.b, kind)
	x.b = binary.NativeEndian.AppendUint16(x.b, unix.NLM_F_REQUEST|flags)
	x.b = binary.NativeEndian.AppendUint32(x.b, x.n)
	x.b = append(x.b, 0, 0, 0, 0, byte(f), unix.NFNETLINK_V0, 0, 0) // sequence number and port; nfgenmsg
	x.n++
}

func (x *batch) end() {
	binary.NativeEndian.PutUint32(x.b[x.last:], uint32(len(x.b)-x.last))
}

// nest begins a nested attribute; close completes it.
func (x *batch) nest(attr uint16) (at int) {
	at = len(x.b)
	x.b = append(x.b, 0, 0)
	x.b = binary.NativeEndian.AppendUint16(x.b, attr|unix.NLA_F_NESTED)
	return at
}

func (x *batch) close(at int) {
	binary.NativeEndian.PutUint16(x.b[at:], uint16(len(x.b)-at))
}

func (x *batch) bytes(attr uint16, v []byte) {
	x.b = binary.NativeEndian.AppendUint16(x.b, uint16(unix.NLA_HDRLEN+len(v)))
	x.b = binary.NativeEndian.AppendUint16(x.b, attr)
	x.b = append(x.b, v...)
	x.pad()
}

func (x *batch) text(attr uint16, v string) {
	x.b = binary.NativeEndian.AppendUint16(x.b, uint16(unix.NLA_HDRLEN+len(v)+1))
	x.b = binary.NativeEndian.AppendUint16(x.b, attr)
	x.b = append(append(x.b, v...), 0)
	x.pad()
}

func (x *batch) number(attr uint16, v uint32) {
	x.b = binary.NativeEndian.AppendUint16(x.b, unix.NLA_HDRLEN+4)
	x.b = binary.NativeEndian.AppendUint16(x.b, attr)
	x.b = binary.BigEndian.AppendUint32(x.b, v)
}

// pad aligns the next attribute or message.
func (x *batch) pad() {
	for len(x.b)%unix.NLA_ALIGNTO != 0 {
		x.b = append(x.b, 0)
	}
}

func (x *batch) expression(attr uint16, f nftables.TableFamily, e expr.Any) {
	b, err := expr.Marshal(byte(f), e)
	if err != nil && x.err == nil {
		x.err = err
	}
	x.bytes(attr|unix.NLA_F_NESTED, b)
}

// about begins a message about an object in a table, and appends the name of the table.
func (x *batch) about(t *nftables.Table, msg, flags uint16) {
	x.message(unix.NFNL_SUBSYS_NFTABLES<<8|msg, flags, t.Family)
	x.text(1, t.Name) // NFTA_TABLE_NAME, NFTA_SET_TABLE, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, …
}

func (x *batch) addTable(t *nftables.Table) {
	x.about(t, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	x.end()
}

func (x *batch) delTable(t *nftables.Table) {
	x.about(t, unix.NFT_MSG_DELTABLE, 0)
	x.end()
}

func (x *batch) addCounter(t *nftables.Table, name string) {
	x.about(t, unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE)
	x.text(unix.NFTA_OBJ_NAME, name)
	x.number(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	x.close(x.nest(unix.NFTA_OBJ_DATA))
	x.end()
}

// addChain adds a chain without a hook.
func (x *batch) addChain(t *nftables.Table, name string) {
	x.named(t, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFTA_CHAIN_NAME, name)
}

func (x *batch) delChain(t *nftables.Table, name string) {
	x.named(t, unix.NFT_MSG_DELCHAIN, 0, unix.NFTA_CHAIN_NAME, name)
}

func (x *batch) flushChain(t *nftables.Table, name string) {
	x.named(t, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_CHAIN, name)
}

func (x *batch) named(t *nftables.Table, msg, flags, attr uint16, name string) {
	x.about(t, msg, flags)
	x.text(attr, name)
	x.end()
}

// addBase adds a chain with a hook.
func (x *batch) addBase(t *nftables.Table, name string, h *nftables.ChainHook, kind nftables.ChainType, priority int32) {
	x.about(t, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	x.text(unix.NFTA_CHAIN_NAME, name)
	hook := x.nest(unix.NFTA_CHAIN_HOOK)
	x.number(unix.NFTA_HOOK_HOOKNUM, uint32(*h))
	x.number(unix.NFTA_HOOK_PRIORITY, uint32(priority))
	x.close(hook)
	x.number(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept))
	x.text(unix.NFTA_CHAIN_TYPE, string(kind))
	x.end()
}

// addRule adds a rule whose expressions are encoded by encode.
func (x *batch) addRule(t *nftables.Table, chain string, made []byte) {
	x.about(t, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	x.text(unix.NFTA_RULE_CHAIN, chain)
	x.bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, made)
	x.end()
}

func (x *batch) encode(f nftables.TableFamily, es exprs) []byte {
	var y batch
	for _, e := range es {
		y.expression(unix.NFTA_LIST_ELEM, f, e)
	}
	if x.err == nil {
		x.err = y.err
	}
	return y.b
}

// Constants of linux/netfilter/nf_tables.h that golang.org/x/sys/unix lacks.
const (
	setConcat  = 0x80 // NFT_SET_CONCAT
	descConcat = 2    // NFTA_SET_DESC_CONCAT
	setExpr    = 17   // NFTA_SET_EXPR
)

func (x *batch) addSet(s *set, id int) {
	x.about(s.Table, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	x.text(unix.NFTA_SET_NAME, s.Name)
	var flags uint32
	for f, has := range map[uint32]bool{unix.NFT_SET_MAP: s.IsMap, unix.NFT_SET_TIMEOUT: s.HasTimeout, unix.NFT_SET_EVAL: s.Dynamic, setConcat: s.Concatenation} {
		if has {
			flags |= f
		}
	}
	x.number(unix.NFTA_SET_FLAGS, flags)
	x.number(unix.NFTA_SET_KEY_TYPE, s.KeyType.GetNFTMagic())
	x.number(unix.NFTA_SET_KEY_LEN, s.KeyType.Bytes)
	x.number(unix.NFTA_SET_ID, uint32(id))
	if s.IsMap {
		kind := s.DataType.GetNFTMagic()
		if s.DataType == nftables.TypeVerdict {
			kind = unix.NFT_DATA_VERDICT
		}
		x.number(unix.NFTA_SET_DATA_TYPE, kind)
		x.number(unix.NFTA_SET_DATA_LEN, s.DataType.Bytes)
	}
	desc := x.nest(unix.NFTA_SET_DESC)
	x.number(unix.NFTA_SET_DESC_SIZE, s.capacity())
	if s.Concatenation {
		parts := x.nest(descConcat)
		for _, part := range nftables.ConcatSetTypeElements(s.KeyType) {
			field := x.nest(unix.NFTA_LIST_ELEM)
			x.number(1, part.Bytes) // NFTA_SET_FIELD_LEN
			x.close(field)
		}
		x.close(parts)
	}
	x.close(desc)
	order := uint32(2) // big endian; for nft(8)
	if s.Concatenation {
		order = 1
	}
	x.bytes(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order))
	if s.Counter {
		x.expression(setExpr, s.Table.Family, &expr.Counter{})
	}
	x.end()
}

// elements adds or deletes elements, depending on msg, in several messages, because an attribute is
// limited to 64 KiB.
func (x *batch) elements(msg uint16, s *set, es iter.Seq2[data, data]) {
	const maxBytes = 60 << 10
	list := 0
	for key, val := range es {
		if list > 0 && len(x.b)-list > maxBytes {
			x.close(list)
			x.end()
			list = 0
		}
		if list == 0 {
			x.about(s.Table, msg, unix.NLM_F_CREATE)
			x.text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
			list = x.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		}
		one := x.nest(unix.NFTA_LIST_ELEM)
		x.value(unix.NFTA_SET_ELEM_KEY, key[:s.KeyType.Bytes])
		switch {
		case !s.IsMap || msg != unix.NFT_MSG_NEWSETELEM:
		case s.DataType == nftables.TypeVerdict:
			x.goTo(unix.NFTA_SET_ELEM_DATA, serviceChain(key.addr()))
		default:
			x.value(unix.NFTA_SET_ELEM_DATA, val[:s.DataType.Bytes])
		}
		x.close(one)
	}
	if list > 0 {
		x.close(list)
		x.end()
	}
}

func (x *batch) value(attr uint16, v []byte) {
	at := x.nest(attr)
	x.bytes(unix.NFTA_DATA_VALUE, v)
	x.close(at)
}

func (x *batch) goTo(attr uint16, chain string) {
	at := x.nest(attr)
	verdict := x.nest(unix.NFTA_DATA_VERDICT)
	x.number(unix.NFTA_VERDICT_CODE, uint32(0xffffffff&int64(expr.VerdictGoto)))
	x.text(unix.NFTA_VERDICT_CHAIN, chain)
	x.close(verdict)
	x.close(at)
}
