// Package packagemirror downloads the packages in lock files and verifies their digests.
package packagemirror

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// parallel is the maximum number of concurrent downloads.
	parallel = 8
	// timeout is the timeout for one download, including its retries.
	timeout = 5 * time.Minute
	// attempts is the maximum number of requests for one download.
	attempts = 4
	// maxPage is the maximum size of an index page in bytes.
	maxPage = 64 << 20
)

// download is a file with a known digest.
type download struct {
	name   string
	digest []byte
	hash   func() hash.Hash
	// address returns the address of the file.
	address func(context.Context) (string, error)
}

// downloadAll downloads files to a directory. It skips files that exist with the expected digest.
func downloadAll(ctx context.Context, directory string, downloads []download) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slots := make(chan struct{}, parallel)
	failures := make([]error, len(downloads))
	var group sync.WaitGroup
	for position, file := range downloads {
		group.Add(1)
		go func() {
			defer group.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := file.saveTo(ctx, filepath.Join(directory, file.name)); err != nil {
				failures[position] = fmt.Errorf("failed to download %s: %w", file.name, err)
				cancel()
			}
		}()
	}
	group.Wait()
	return errors.Join(failures...)
}

func (file download) saveTo(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if file.existsAt(path) {
		return nil
	}
	address, err := file.address(ctx)
	if err != nil {
		return err
	}
	return retry(ctx, func() error { return file.fetch(ctx, address, path) })
}

func (file download) existsAt(path string) bool {
	existing, err := os.Open(path)
	if err != nil {
		return false
	}
	defer existing.Close()
	digest := file.hash()
	_, err = io.Copy(digest, existing)
	return err == nil && subtle.ConstantTimeCompare(digest.Sum(nil), file.digest) == 1
}

// fetch writes the file to a temporary path, and renames it after the verification.
func (file download) fetch(ctx context.Context, address, path string) error {
	body, err := open(ctx, address)
	if err != nil {
		return err
	}
	defer body.Close()
	partial, err := os.CreateTemp(filepath.Dir(path), ".partial")
	if err != nil {
		return err
	}
	defer os.Remove(partial.Name())
	defer partial.Close()
	digest := file.hash()
	if _, err := io.Copy(io.MultiWriter(partial, digest), body); err != nil {
		return fmt.Errorf("failed to read %s: %w", address, err)
	}
	if found := digest.Sum(nil); subtle.ConstantTimeCompare(found, file.digest) != 1 {
		return permanent{fmt.Errorf("%s has the digest %x, expected %x", address, found, file.digest)}
	}
	if err := partial.Chmod(0o644); err != nil {
		return err
	}
	return os.Rename(partial.Name(), path)
}

// permanent is an error that a retry cannot fix.
type permanent struct{ error }

func retry(ctx context.Context, try func() error) error {
	delay := time.Second
	for attempt := 1; ; attempt++ {
		err := try()
		if err == nil || attempt == attempts || errors.As(err, &permanent{}) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(delay):
			delay *= 2
		}
	}
}

func open(ctx context.Context, address string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, permanent{err}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	response.Body.Close()
	err = fmt.Errorf("%s: %s", address, response.Status)
	if response.StatusCode < http.StatusInternalServerError && response.StatusCode != http.StatusTooManyRequests {
		return nil, permanent{err}
	}
	return nil, err
}
