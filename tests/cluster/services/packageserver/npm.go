package packageserver

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxManifest is the maximum size of a package.json in bytes.
const maxManifest = 1 << 20

// npmVersion is one version of an npm package: its package.json and its archive.
type npmVersion struct {
	manifest  map[string]any
	file      string
	integrity string
}

// readNPM reads the manifests of all archives in a directory. The result is by package name and version.
func readNPM(directory string) (map[string]map[string]npmVersion, error) {
	packages := map[string]map[string]npmVersion{}
	archives, err := filepath.Glob(filepath.Join(directory, "*.tgz"))
	if err != nil {
		return nil, err
	}
	for _, archive := range archives {
		version, err := readArchive(archive)
		if err != nil {
			return nil, fmt.Errorf("failed to read %s: %w", archive, err)
		}
		name, _ := version.manifest["name"].(string)
		number, _ := version.manifest["version"].(string)
		// Some archives contain this prefix, which registries remove.
		number = strings.TrimPrefix(number, "v")
		version.manifest["version"] = number
		if name == "" || number == "" {
			return nil, fmt.Errorf("package.json in %s has no name or no version", archive)
		}
		if packages[name] == nil {
			packages[name] = map[string]npmVersion{}
		}
		packages[name][number] = version
	}
	return packages, nil
}

func readArchive(path string) (npmVersion, error) {
	file, err := os.Open(path)
	if err != nil {
		return npmVersion{}, err
	}
	defer file.Close()
	digest := sha512.New()
	content := io.TeeReader(file, digest)
	unpacked, err := gzip.NewReader(content)
	if err != nil {
		return npmVersion{}, err
	}
	manifest, err := readManifest(tar.NewReader(unpacked))
	if err != nil {
		return npmVersion{}, err
	}
	if _, err := io.Copy(io.Discard, content); err != nil {
		return npmVersion{}, err
	}
	integrity := "sha512-" + base64.StdEncoding.EncodeToString(digest.Sum(nil))
	return npmVersion{manifest: manifest, file: filepath.Base(path), integrity: integrity}, nil
}

// readManifest returns the package.json in the first directory of an archive. In most archives, this directory is
// `package`.
func readManifest(archive *tar.Reader) (map[string]any, error) {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the archive has no package.json")
		}
		if err != nil {
			return nil, err
		}
		if _, rest, found := strings.Cut(strings.TrimPrefix(header.Name, "./"), "/"); !found || rest != "package.json" {
			continue
		}
		manifest := map[string]any{}
		return manifest, json.NewDecoder(io.LimitReader(archive, maxManifest)).Decode(&manifest)
	}
}

// packument returns the metadata of a package in the format of the npm registry. The addresses of archives begin with
// base.
func packument(name string, versions map[string]npmVersion, base string) map[string]any {
	all := map[string]any{}
	latest := ""
	for number, version := range versions {
		manifest := map[string]any{}
		for key, value := range version.manifest {
			manifest[key] = value
		}
		manifest["_id"] = name + "@" + number
		manifest["dist"] = map[string]any{"tarball": base + "/-/" + version.file, "integrity": version.integrity}
		all[number] = manifest
		if latest == "" || isNewer(number, latest) {
			latest = number
		}
	}
	return map[string]any{"name": name, "dist-tags": map[string]any{"latest": latest}, "versions": all}
}

// isNewer compares two versions by their numbers. A version with a pre-release part is older than the same version
// without it.
func isNewer(version, than string) bool {
	number, preRelease, _ := strings.Cut(version, "-")
	thanNumber, thanPreRelease, _ := strings.Cut(than, "-")
	if number == thanNumber {
		return preRelease == "" || (thanPreRelease != "" && preRelease > thanPreRelease)
	}
	parts, thanParts := strings.Split(number, "."), strings.Split(thanNumber, ".")
	for position := range min(len(parts), len(thanParts)) {
		part, thanPart := parts[position], thanParts[position]
		if part != thanPart {
			return len(part) > len(thanPart) || (len(part) == len(thanPart) && part > thanPart)
		}
	}
	return len(parts) > len(thanParts)
}
