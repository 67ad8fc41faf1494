package pulumicloud

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// unfinished is the name prefix of files that are not completely written.
const unfinished = ".unfinished-"

// writeFile replaces a file atomically. It does not wait for the disk, because the state of a test cluster does not
// need to survive a crash of the machine.
func writeFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), unfinished)
	if err != nil {
		return fmt.Errorf("failed to create a temporary file for %s: %w", path, err)
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(fmt.Errorf("failed to write %s: %w", path, err), os.Remove(file.Name()))
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return errors.Join(fmt.Errorf("failed to replace %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}

func writeJSONFile(path string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("failed to encode %s: %w", path, err)
	}
	return writeFile(path, content)
}

func readJSONFile(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("failed to read %s: %w", path, err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("failed to decode %s: %w", path, err)
	}
	return nil
}

// removeUnfinished deletes the files that an earlier process did not finish.
func removeUnfinished(root string) error {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(entry.Name(), unfinished) {
			err = os.Remove(path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("failed to remove unfinished files from %s: %w", root, err)
	}
	return nil
}

// randomID returns an unpredictable identifier of 32 characters.
func randomID() string {
	var bytes [16]byte
	// The function never returns an error.
	_, _ = rand.Read(bytes[:])
	return hex.EncodeToString(bytes[:])
}

// randomUUID returns a random UUID, the form of all identifiers of the service.
func randomUUID() string {
	var bytes [16]byte
	_, _ = rand.Read(bytes[:])
	bytes[6] = bytes[6]&0x0f | 0x40
	bytes[8] = bytes[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", bytes[:4], bytes[4:6], bytes[6:8], bytes[8:10], bytes[10:])
}

// isName reports whether a string is a valid name of an organization, user, project, stack or environment. The name can
// then also be the name of a file.
func isName(name string) bool {
	if name == "" || len(name) > 100 || strings.Trim(name, ".") == "" {
		return false
	}
	for _, character := range name {
		switch {
		case character >= 'a' && character <= 'z', character >= 'A' && character <= 'Z', character >= '0' && character <= '9':
		case character == '-', character == '_', character == '.':
		default:
			return false
		}
	}
	return true
}
