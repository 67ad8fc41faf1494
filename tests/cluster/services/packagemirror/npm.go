package packagemirror

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// npmLock is the part of a package-lock.json (version 2 or 3) that the mirror reads.
type npmLock struct {
	Packages map[string]struct {
		// Name is set if the package is installed under another name.
		Name      string
		Version   string
		Integrity string
		Link      bool
		InBundle  bool
		OS        platforms
		CPU       platforms
	}
}

// platforms is a list of platforms. In JSON, it can also be a single string.
type platforms []string

func (list *platforms) UnmarshalJSON(content []byte) error {
	var single string
	if json.Unmarshal(content, &single) == nil {
		*list = platforms{single}
		return nil
	}
	return json.Unmarshal(content, (*[]string)(list))
}

// NPM downloads the packages in a package-lock.json to a directory. It skips packages that do not support Linux on x64.
func NPM(ctx context.Context, lock, registry, directory string) error {
	content, err := os.ReadFile(lock)
	if err != nil {
		return err
	}
	var parsed npmLock
	if err := json.Unmarshal(content, &parsed); err != nil {
		return fmt.Errorf("failed to parse %s: %w", lock, err)
	}
	known := map[string]bool{}
	var downloads []download
	for location, entry := range parsed.Packages {
		_, name, isPackage := cutLast(location, "node_modules/")
		if entry.Name != "" {
			name = entry.Name
		}
		isForeign := !entry.OS.allows("linux") || !entry.CPU.allows("x64")
		if !isPackage || entry.Link || entry.InBundle || isForeign || known[name+"@"+entry.Version] {
			continue
		}
		known[name+"@"+entry.Version] = true
		encoded, isSHA512 := strings.CutPrefix(entry.Integrity, "sha512-")
		digest, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || !isSHA512 {
			return fmt.Errorf("%s: %s has the unsupported integrity %q", lock, location, entry.Integrity)
		}
		address := fmt.Sprintf("%s/%s/-/%s-%s.tgz", strings.TrimSuffix(registry, "/"), name, path.Base(name), entry.Version)
		downloads = append(downloads, download{
			name:    strings.ReplaceAll(name, "/", "-") + "-" + entry.Version + ".tgz",
			digest:  digest,
			hash:    sha512.New,
			address: func(context.Context) (string, error) { return address, nil },
		})
	}
	return downloadAll(ctx, directory, downloads)
}

func cutLast(text, separator string) (before, after string, found bool) {
	position := strings.LastIndex(text, separator)
	if position < 0 {
		return text, "", false
	}
	return text[:position], text[position+len(separator):], true
}

// allows returns whether the list contains a platform. An empty list and `any` contain all platforms. A `!` before a
// platform excludes it.
func (list platforms) allows(platform string) bool {
	if slices.Contains(list, "!"+platform) {
		return false
	}
	isPositive := func(entry string) bool { return !strings.HasPrefix(entry, "!") }
	return !slices.ContainsFunc(list, isPositive) || slices.Contains(list, platform) || slices.Contains(list, "any")
}
