package target

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
)

// Random is deterministic noise: the same seed gives the same bytes.
func Random(seed uint64, size int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	noise := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(noise) // never fails
	return noise
}

// A blob tells its own length and checksum, so that a receiver can judge it alone: 8 bytes of length, the noise,
// its SHA-256.
const blobOverhead = 8 + sha256.Size

// Blob makes one with the given number of noise bytes.
func Blob(seed uint64, size int) []byte {
	noise := Random(seed, size)
	blob := binary.BigEndian.AppendUint64(make([]byte, 0, size+blobOverhead), uint64(size))
	blob = append(blob, noise...)
	sum := sha256.Sum256(noise)
	return append(blob, sum[:]...)
}

// IncompleteError tells that a stream ended before the blob did.
type IncompleteError struct {
	Got, Want int // Want is 0 if not even the length arrived
	Cause     error
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("stream ended after %d of %d bytes: %v", e.Got, e.Want, e.Cause)
}

// ReadBlob reads the stream to its end and checks that it was exactly one blob.
func ReadBlob(reader io.Reader, maxSize int) error {
	all, err := io.ReadAll(io.LimitReader(reader, int64(maxSize+blobOverhead+1)))
	if err == nil {
		err = io.EOF
	}
	if len(all) < 8 {
		return &IncompleteError{Got: len(all), Cause: err}
	}
	size := binary.BigEndian.Uint64(all)
	if size > uint64(maxSize) {
		return fmt.Errorf("blob claims %d bytes, the largest sent has %d", size, maxSize)
	}
	want := int(size) + blobOverhead
	if len(all) < want {
		return &IncompleteError{Got: len(all), Want: want, Cause: err}
	}
	if len(all) > want {
		return fmt.Errorf("stream has bytes behind the %d of the blob", want)
	}
	if sum := sha256.Sum256(all[8 : 8+size]); sum != [sha256.Size]byte(all[8+size:]) {
		return fmt.Errorf("checksum of %d bytes differs", size)
	}
	return nil
}
