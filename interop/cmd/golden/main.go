// Command golden writes packets as upstream's generated Go code encodes and decodes them, one a line, for
// the codec tests of the tunnel crate.
//
// Every expectation in the file is what upstream's decoder made of the bytes, never what this program meant
// them to be. With -check nothing is written: the exit code tells whether the file is up to date.
package main

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

const header = `# Packets as the generated Go code of sigs.k8s.io/apiserver-network-proxy encodes and decodes them.
# Written by interop/cmd/golden; do not edit by hand.
#
# One packet a line, three columns divided by a tab: name, hex of the protobuf message (without the gRPC
# prefix), description. Lines that start with '#' are comments. A description is a kind and its fields, each
# after one space, always all of them, always in this order:
#
#   DIAL_REQ protocol="tcp" address="a:1" random=1 encoding=E
#   DIAL_RSP error="" connect_id=7 random=1 encoding=E
#   CLOSE_REQ connect_id=7 encoding=E
#   CLOSE_RSP error="" connect_id=7 encoding=E
#   DATA connect_id=7 error="" data_hex=6869 encoding=E
#   DATA connect_id=7 error="" data_fill=61*65536 encoding=E    (the byte 0x61, 65536 times)
#   DIAL_CLS random=1 encoding=E
#   DRAIN encoding=E
#   MISMATCH type=4 payload=DIAL_REQ    the type is known, the payload is another kind's, or payload=none
#   UNKNOWN type=99                     no packet type has this number
#   INVALID                             refused by the protobuf decoder
#
# E is canonical when an encoder must produce exactly these bytes for these fields, foreign when only a
# decoder can meet them (unknown fields, another order, explicit zeros, wide varints). Numbers are decimal
# int64. Inside quotes, '\' and '"' are written \\ and \", bytes outside 0x20..0x7e as \xNN.
`

func main() {
	out := flag.String("out", "../tunnel/tests/golden/packets.txt", "`file` to write or check")
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(*out, *check); err != nil {
		fmt.Fprintln(os.Stderr, "golden:", err)
		os.Exit(1)
	}
}

func run(path string, check bool) error {
	file, count, err := render()
	if err != nil {
		return err
	}
	if !check {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, file, 0o644)
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, file) {
		return fmt.Errorf("%s differs from what upstream's code says; run 'go run ./cmd/golden'", path)
	}
	fmt.Printf("golden: %d packets, up to date\n", count)
	return nil
}

// render gives the whole file and the number of packets in it.
func render() ([]byte, int, error) {
	var file bytes.Buffer
	file.WriteString(header)
	samples, err := allSamples()
	if err != nil {
		return nil, 0, err
	}
	names := make(map[string]bool)
	for _, s := range samples {
		if names[s.name] {
			return nil, 0, fmt.Errorf("two packets are named %s", s.name)
		}
		names[s.name] = true
		description, err := describe(s.wire)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(&file, "%s\t%s\t%s\n", s.name, hex.EncodeToString(s.wire), description)
	}
	return file.Bytes(), len(samples), nil
}

// describe decodes with upstream's code and tells what came out, in the words of the file's header.
func describe(wire []byte) (string, error) {
	packet := &client.Packet{}
	if err := proto.Unmarshal(wire, packet); err != nil {
		return "INVALID", nil
	}
	if _, known := client.PacketType_name[int32(packet.Type)]; !known {
		return fmt.Sprintf("UNKNOWN type=%d", packet.Type), nil
	}
	payload, fields := payloadOf(packet)
	if payload != packet.Type.String() {
		return fmt.Sprintf("MISMATCH type=%d payload=%s", packet.Type, payload), nil
	}
	canonical, err := isCanonical(wire, packet)
	if err != nil {
		return "", err
	}
	encoding := "foreign"
	if canonical {
		encoding = "canonical"
	}
	return payload + fields + " encoding=" + encoding, nil
}

// isCanonical tells whether encoding the known fields again gives the same bytes.
func isCanonical(wire []byte, packet *client.Packet) (bool, error) {
	known := proto.Clone(packet)
	stripped := &client.Packet{}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(wire, stripped); err != nil {
		return false, err
	}
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(stripped)
	if err != nil {
		return false, err
	}
	return bytes.Equal(again, wire) && proto.Equal(known, stripped), nil
}

// payloadOf names the payload by the packet type it belongs to, and lists its fields.
func payloadOf(packet *client.Packet) (kind, fields string) {
	switch p := packet.Payload.(type) {
	case *client.Packet_DialRequest:
		r := p.DialRequest
		return "DIAL_REQ", fmt.Sprintf(" protocol=%s address=%s random=%d", quote(r.Protocol), quote(r.Address), r.Random)
	case *client.Packet_DialResponse:
		r := p.DialResponse
		return "DIAL_RSP", fmt.Sprintf(" error=%s connect_id=%d random=%d", quote(r.Error), r.ConnectID, r.Random)
	case *client.Packet_CloseRequest:
		return "CLOSE_REQ", fmt.Sprintf(" connect_id=%d", p.CloseRequest.ConnectID)
	case *client.Packet_CloseResponse:
		r := p.CloseResponse
		return "CLOSE_RSP", fmt.Sprintf(" error=%s connect_id=%d", quote(r.Error), r.ConnectID)
	case *client.Packet_Data:
		d := p.Data
		return "DATA", fmt.Sprintf(" connect_id=%d error=%s %s", d.ConnectID, quote(d.Error), bytesField(d.Data))
	case *client.Packet_CloseDial:
		return "DIAL_CLS", fmt.Sprintf(" random=%d", p.CloseDial.Random)
	case *client.Packet_Drain:
		return "DRAIN", ""
	default:
		return "none", ""
	}
}

// bytesField writes long runs of one byte short, so that a 64 KiB payload is not in the file twice.
func bytesField(data []byte) string {
	if len(data) > 256 && bytes.Count(data, data[:1]) == len(data) {
		return fmt.Sprintf("data_fill=%02x*%d", data[0], len(data))
	}
	return "data_hex=" + hex.EncodeToString(data)
}

func quote(text string) string {
	quoted := []byte{'"'}
	for _, b := range []byte(text) {
		switch {
		case b == '"' || b == '\\':
			quoted = append(quoted, '\\', b)
		case b < 0x20 || b > 0x7e:
			quoted = fmt.Appendf(quoted, `\x%02x`, b)
		default:
			quoted = append(quoted, b)
		}
	}
	return string(append(quoted, '"'))
}
