package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// sample is one line of the file.
type sample struct {
	name string
	wire []byte
}

func allSamples() ([]sample, error) {
	samples, err := encodedSamples()
	if err != nil {
		return nil, err
	}
	return append(samples, handmadeSamples()...), nil
}

// encodedSamples are made by upstream's encoder.
func encodedSamples() ([]sample, error) {
	var samples []sample
	for _, p := range packets() {
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.packet)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", p.name, err)
		}
		samples = append(samples, sample{p.name, wire})
	}
	return samples, nil
}

type named struct {
	name   string
	packet *client.Packet
}

// ids are the ids worth a packet of their own: every varint width that matters, and both ends.
var ids = []struct {
	name  string
	value int64
}{
	{"0", 0}, {"1", 1}, {"127", 127}, {"128", 128}, {"16384", 16384}, {"2p31", 1 << 31}, {"2p32", 1 << 32},
	{"max", math.MaxInt64}, {"minus-1", -1}, {"min", math.MinInt64},
}

func packets() []named {
	var all []named
	add := func(name string, packet *client.Packet) { all = append(all, named{name, packet}) }

	add("empty", &client.Packet{})
	add("dial-req", dialRequest("tcp", "10.0.0.1:443", 1))
	add("dial-req-ipv6", dialRequest("tcp", "[fd00::7]:10250", 4711))
	add("dial-req-empty-strings", dialRequest("", "", 0))
	add("dial-req-non-ascii", dialRequest("tcp", "bücher.example:443", 5))
	add("dial-req-escapes", dialRequest("tcp", "a\"b\\c\t\x00:1", 6))
	add("dial-req-long-address", dialRequest("tcp", strings.Repeat("a", 300)+":1", 7))
	add("dial-rsp-error", dialResponse("e", 0, 1))
	add("dial-rsp-error-text", dialResponse("dial tcp 127.0.0.1:1: connect: connection refused", 0, math.MaxInt64))
	add("dial-rsp-error-and-id", dialResponse("e", 7, 1))
	add("close-rsp-error", closeResponse("e", 7))
	add("close-rsp-error-text", closeResponse("Unknown connectID", math.MaxInt64))
	add("close-rsp-error-long", closeResponse(strings.Repeat("x", 200), 7))
	add("data-hi", data(7, "", []byte("hi")))
	add("data-no-bytes", data(7, "", nil))
	add("data-all-zero", data(0, "", nil))
	add("data-error", data(7, "e", []byte("hi")))
	add("data-byte-00", data(7, "", []byte{0}))
	add("data-byte-ff", data(7, "", []byte{0xff}))
	add("data-every-byte", data(7, "", everyByte()))
	for _, size := range []int{127, 128, 4096, 16383, 16384, 32768, 65536} {
		add(fmt.Sprintf("data-%d-bytes", size), data(7, "", bytes.Repeat([]byte("a"), size)))
	}
	add("data-65536-bytes-max-id", data(math.MaxInt64, "", bytes.Repeat([]byte{0xa5}, 65536)))
	add("drain", &client.Packet{Type: client.PacketType_DRAIN, Payload: &client.Packet_Drain{Drain: &client.Drain{}}})
	for _, id := range ids {
		add("dial-req-random-"+id.name, dialRequest("tcp", "a:1", id.value))
		add("dial-rsp-connect-id-"+id.name, dialResponse("", id.value, 1))
		add("dial-rsp-random-"+id.name, dialResponse("", 7, id.value))
		add("close-req-connect-id-"+id.name, closeRequest(id.value))
		add("close-rsp-connect-id-"+id.name, closeResponse("", id.value))
		add("data-connect-id-"+id.name, data(id.value, "", []byte("hi")))
		add("dial-cls-random-"+id.name, dialClose(id.value))
	}
	for _, number := range []int32{7, 99, math.MaxInt32, -1, math.MinInt32} {
		kind := client.PacketType(number)
		add(fmt.Sprintf("unknown-type-%d", number), &client.Packet{Type: kind})
		withPayload := data(7, "", []byte("hi"))
		withPayload.Type = kind
		add(fmt.Sprintf("unknown-type-%d-with-data", number), withPayload)
	}
	return append(all, mismatches()...)
}

// mismatches pairs every packet type with no payload, and with one payload that is not its own (T5, W8).
func mismatches() []named {
	var all []named
	others := []*client.Packet{
		data(7, "", []byte("hi")), dialRequest("tcp", "a:1", 1), dialResponse("", 7, 1), closeRequest(7),
		closeResponse("", 7), dialClose(1),
	}
	for number := int32(0); number <= 6; number++ {
		kind := client.PacketType(number)
		name := strings.ToLower(strings.ReplaceAll(kind.String(), "_", "-"))
		if number != 0 { // type 0 without payload is the sample "empty"
			all = append(all, named{"mismatch-" + name + "-none", &client.Packet{Type: kind}})
		}
		for _, other := range others {
			if other.Type == kind {
				continue
			}
			otherName := strings.ToLower(strings.ReplaceAll(other.Type.String(), "_", "-"))
			all = append(all, named{"mismatch-" + name + "-" + otherName, &client.Packet{Type: kind, Payload: other.Payload}})
		}
	}
	return all
}

// handmadeSamples are bytes that upstream's encoder never produces but a peer may send.
func handmadeSamples() []sample {
	hi := varint(bytesOf(varint(nil, 1, 7), 3, "hi"), 99, 5) // Data with an unknown field inside
	plain := bytesOf(varint(nil, 1, 7), 3, "hi")
	dataPacket := bytesOf(varint(nil, 1, 4), 4, string(plain))
	return []sample{
		{"unknown-varint-field-after", varint(clone(dataPacket), 99, 1)},
		{"unknown-varint-field-before", append(varint(nil, 99, 1), dataPacket...)},
		{"unknown-bytes-field", bytesOf(clone(dataPacket), 1000, "ignored")},
		{"unknown-fixed32-field", protowire.AppendFixed32(protowire.AppendTag(clone(dataPacket), 50, protowire.Fixed32Type), 1)},
		{"unknown-fixed64-field", protowire.AppendFixed64(protowire.AppendTag(clone(dataPacket), 51, protowire.Fixed64Type), 1)},
		{"unknown-group-field", protowire.AppendGroup(protowire.AppendTag(clone(dataPacket), 52, protowire.StartGroupType), 52, varint(nil, 1, 1))},
		{"unknown-largest-field-number", varint(clone(dataPacket), protowire.MaxValidNumber, 1)},
		{"unknown-field-in-payload", bytesOf(varint(nil, 1, 4), 4, string(hi))},
		{"unknown-field-in-drain", bytesOf(varint(nil, 1, 6), 8, string(varint(nil, 1, 1)))},
		{"known-field-of-another-wire-type", append(protowire.AppendFixed32(protowire.AppendTag(nil, 1, protowire.Fixed32Type), 2), dataPacket...)},
		{"payload-before-type", varint(bytesOf(nil, 4, string(plain)), 1, 4)},
		{"payload-fields-in-reverse", bytesOf(varint(nil, 1, 4), 4, string(varint(bytesOf(nil, 3, "hi"), 1, 7)))},
		{"type-twice-last-wins", append(varint(nil, 1, 2), dataPacket...)},
		{"type-explicit-zero", bytesOf(varint(nil, 1, 0), 2, string(varint(nil, 3, 1)))},
		{"type-over-32-bits", bytesOf(varint(nil, 1, 1<<32+4), 4, string(plain))},
		{"connect-id-twice-last-wins", bytesOf(varint(nil, 1, 2), 5, string(varint(varint(nil, 1, 3), 1, 8)))},
		{"connect-id-explicit-zero", bytesOf(varint(nil, 1, 2), 5, string(varint(nil, 1, 0)))},
		{"connect-id-wide-varint", bytesOf(varint(nil, 1, 2), 5, "\x08\x87\x80\x80\x00")},
		{"connect-id-ten-byte-varint-overlong", bytesOf(varint(nil, 1, 2), 5, "\x08\x87\x80\x80\x80\x80\x80\x80\x80\x80\x00")},
		{"payload-of-two-kinds-last-wins", append(bytesOf(nil, 2, string(bytesOf(nil, 2, "a:1"))), dataPacket...)},
		{"payload-twice-merges", bytesOf(clone(dataPacket), 4, string(bytesOf(nil, 3, "ho")))},
		{"data-bytes-twice-last-wins", bytesOf(varint(nil, 1, 4), 4, string(bytesOf(clone(plain), 3, "ho")))},
		{"data-bytes-explicitly-empty", bytesOf(varint(nil, 1, 4), 4, string(bytesOf(varint(nil, 1, 7), 3, "")))},
		{"bad-length-past-end", []byte("\x08\x04\x22\x7f\x08\x07")},
		{"bad-inner-length-past-end", bytesOf(varint(nil, 1, 4), 4, "\x1a\x05hi")},
		{"bad-length-of-64-bits", []byte("\x08\x04\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")},
		{"bad-tag-only", []byte("\x08")},
		{"bad-varint-unfinished", []byte("\x08\x80")},
		{"bad-varint-of-eleven-bytes", []byte("\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")},
		{"bad-varint-past-64-bits", []byte("\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02")},
		{"bad-field-number-zero", []byte("\x00\x01")},
		{"bad-wire-type-6", []byte("\x0e\x01")},
		{"bad-wire-type-7", []byte("\x0f\x01")},
		{"bad-group-end-alone", []byte("\x0c")},
		{"bad-group-unfinished", protowire.AppendTag(nil, 52, protowire.StartGroupType)},
		{"bad-group-ends-as-another", []byte("\xa3\x03\xac\x03")},
		{"bad-fixed32-cut", []byte("\x95\x03\x00\x00")},
		{"bad-fixed64-cut", []byte("\x99\x03\x00\x00\x00\x00")},
		{"bad-error-not-utf8", bytesOf(varint(nil, 1, 1), 3, string(bytesOf(nil, 1, "\xff")))},
		{"bad-address-not-utf8", bytesOf(nil, 2, string(bytesOf(nil, 2, "\xc3")))},
	}
}

func clone(wire []byte) []byte { return append([]byte(nil), wire...) }

func varint(to []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), value)
}

func bytesOf(to []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), value)
}

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

func dialRequest(protocol, address string, random int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_REQ, Payload: &client.Packet_DialRequest{
		DialRequest: &client.DialRequest{Protocol: protocol, Address: address, Random: random},
	}}
}

func dialResponse(text string, connectID, random int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_RSP, Payload: &client.Packet_DialResponse{
		DialResponse: &client.DialResponse{Error: text, ConnectID: connectID, Random: random},
	}}
}

func closeRequest(connectID int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_CLOSE_REQ, Payload: &client.Packet_CloseRequest{
		CloseRequest: &client.CloseRequest{ConnectID: connectID},
	}}
}

func closeResponse(text string, connectID int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_CLOSE_RSP, Payload: &client.Packet_CloseResponse{
		CloseResponse: &client.CloseResponse{Error: text, ConnectID: connectID},
	}}
}

func data(connectID int64, text string, payload []byte) *client.Packet {
	return &client.Packet{Type: client.PacketType_DATA, Payload: &client.Packet_Data{
		Data: &client.Data{ConnectID: connectID, Error: text, Data: payload},
	}}
}

func dialClose(random int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_CLS, Payload: &client.Packet_CloseDial{
		CloseDial: &client.CloseDial{Random: random},
	}}
}
