package packageserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// separators matches the characters that are equivalent in names of Python packages (PEP 503).
var separators = regexp.MustCompile(`[-_.]+`)

// pythonFile is a wheel or a source archive.
type pythonFile struct {
	name   string
	digest string
}

// readPython lists all wheels and source archives in a directory by the normalized name of their package.
func readPython(directory string) (map[string][]pythonFile, error) {
	files := map[string][]pythonFile{}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		digest, err := sha256Of(filepath.Join(directory, entry.Name()))
		if err != nil {
			return nil, err
		}
		name := pythonPackage(entry.Name())
		files[name] = append(files[name], pythonFile{name: entry.Name(), digest: digest})
	}
	return files, nil
}

// pythonPackage returns the normalized package name of a file such as `PyYAML-6.0.3-cp311-cp311-linux_x86_64.whl` or
// `my-package-1.0.tar.gz`.
func pythonPackage(file string) string {
	name, isArchive := strings.CutSuffix(file, ".tar.gz")
	if isArchive {
		name = name[:max(strings.LastIndex(name, "-"), 0)]
	} else {
		name, _, _ = strings.Cut(file, "-")
	}
	return normalize(name)
}

func normalize(name string) string {
	return separators.ReplaceAllString(strings.ToLower(name), "-")
}

func sha256Of(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return "", fmt.Errorf("failed to read %s: %w", path, err)
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// simpleIndex returns the page of a package in the format of the simple repository API (PEP 503).
func simpleIndex(files []pythonFile, base string) string {
	var page strings.Builder
	page.WriteString("<!DOCTYPE html>\n<html><body>\n")
	for _, file := range files {
		name := html.EscapeString(file.name)
		fmt.Fprintf(&page, "<a href=\"%s/files/%s#sha256=%s\">%s</a><br>\n", html.EscapeString(base), name, file.digest, name)
	}
	page.WriteString("</body></html>\n")
	return page.String()
}
