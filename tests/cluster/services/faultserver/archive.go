package faultserver

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
)

// manyEntries is a number of entries that exceeds the limit of any extractor.
const manyEntries = 1_000_000

// bombSize is the unpacked size of a decompression bomb in bytes. It exceeds the limit of any extractor.
const bombSize = 2 << 30

// generators write archives that are too large for an upload. Their output is deterministic.
var generators = map[string]func(*tar.Writer) error{
	"entries": writeManyEntries,
	"bomb":    writeBomb,
}

// generate streams a gzip-compressed archive.
func generate(name string, to io.Writer) error {
	write, known := generators[name]
	if !known {
		return fmt.Errorf("unknown archive %q: must be entries or bomb", name)
	}
	compressed, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	if err := write(archive); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

func writeManyEntries(archive *tar.Writer) error {
	for number := range manyEntries {
		// The names compress badly, so the archive exceeds only the limit on the number of entries.
		name := fmt.Sprintf("%x", sha256.Sum256([]byte{byte(number), byte(number >> 8), byte(number >> 16)}))
		header := tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
	}
	return nil
}

func writeBomb(archive *tar.Writer) error {
	header := tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: bombSize}
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for range bombSize / len(zeros) {
		if _, err := archive.Write(zeros); err != nil {
			return err
		}
	}
	return nil
}

// measured counts and hashes the bytes that are written to it.
type measured struct {
	size int64
	hash hash.Hash
}

func newMeasured() *measured {
	return &measured{hash: sha256.New()}
}

func (m *measured) Write(piece []byte) (int, error) {
	m.size += int64(len(piece))
	return m.hash.Write(piece)
}

func (m *measured) digest() string {
	return "sha256:" + hex.EncodeToString(m.hash.Sum(nil))
}
