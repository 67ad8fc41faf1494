package packagemirror

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
)

var (
	// requirement matches a line such as `pyyaml==6.0.3 --hash=sha256:…  # PyYAML-6.0.3-cp311-….whl`.
	requirement = regexp.MustCompile(`^([A-Za-z0-9._-]+)==(\S+) --hash=sha256:([0-9a-f]{64})  # (\S+)$`)
	link        = regexp.MustCompile(`href="([^"]+)"`)
)

// PyPI downloads the files in a lock file to a directory. Each line of the lock file contains a requirement with a
// hash, and the file name in a comment. pip therefore accepts the lock file as a requirements file.
func PyPI(ctx context.Context, lock, index, directory string) error {
	content, err := os.ReadFile(lock)
	if err != nil {
		return err
	}
	var downloads []download
	for number, line := range strings.Split(string(content), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := requirement.FindStringSubmatch(line)
		if parts == nil {
			return fmt.Errorf("%s line %d: expected `NAME==VERSION --hash=sha256:HASH  # FILE`", lock, number+1)
		}
		name, file := parts[1], parts[4]
		digest, err := hex.DecodeString(parts[3])
		if err != nil || path.Base(file) != file {
			return errors.Join(fmt.Errorf("%s line %d: invalid hash or file name", lock, number+1), err)
		}
		downloads = append(downloads, download{
			name:    file,
			digest:  digest,
			hash:    sha256.New,
			address: func(ctx context.Context) (string, error) { return find(ctx, index, name, file) },
		})
	}
	return downloadAll(ctx, directory, downloads)
}

// find returns the address of a file on the index page of its package.
func find(ctx context.Context, index, name, file string) (string, error) {
	page, err := url.Parse(strings.TrimSuffix(index, "/") + "/" + name + "/")
	if err != nil {
		return "", err
	}
	var content []byte
	err = retry(ctx, func() error {
		body, err := open(ctx, page.String())
		if err != nil {
			return err
		}
		defer body.Close()
		content, err = io.ReadAll(io.LimitReader(body, maxPage))
		return err
	})
	if err != nil {
		return "", err
	}
	for _, match := range link.FindAllStringSubmatch(string(content), -1) {
		address, err := page.Parse(html.UnescapeString(match[1]))
		if err == nil && path.Base(address.Path) == file {
			address.Fragment = ""
			return address.String(), nil
		}
	}
	return "", fmt.Errorf("%s does not list %s", page, file)
}
