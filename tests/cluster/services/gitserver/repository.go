package gitserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func (server *Server) path(name string) string {
	return filepath.Join(server.root, name+".git")
}

func (server *Server) exists(name string) bool {
	_, err := os.Stat(server.path(name))
	return err == nil
}

// ensureExists creates an empty repository if it does not exist, and returns whether it has created it. The last step
// renames the repository, because clients must never see an incomplete repository.
func (server *Server) ensureExists(name string) (created bool, err error) {
	server.creating.Lock()
	defer server.creating.Unlock()
	if server.exists(name) {
		return false, nil
	}
	directory, err := os.MkdirTemp(server.root, unfinished)
	if err != nil {
		return false, fmt.Errorf("failed to create the repository %s: %w", name, err)
	}
	defer os.RemoveAll(directory)
	command := exec.Command(server.git, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", directory)
	command.Env = gitEnvironment()
	if output, err := command.CombinedOutput(); err != nil {
		return false, fmt.Errorf("failed to create the repository %s: git init: %w: %s", name, err, strings.TrimSpace(string(output)))
	}
	if err := os.Chmod(directory, 0o755); err != nil {
		return false, fmt.Errorf("failed to create the repository %s: %w", name, err)
	}
	if err := os.Rename(directory, server.path(name)); err != nil {
		return false, fmt.Errorf("failed to create the repository %s: %w", name, err)
	}
	return true, nil
}

// removeUnfinished removes the incomplete repositories that a killed server has left.
func removeUnfinished(root string) error {
	left, err := filepath.Glob(filepath.Join(root, unfinished+"*"))
	if err != nil {
		return fmt.Errorf("failed to list unfinished repositories in %s: %w", root, err)
	}
	for _, directory := range left {
		if err := os.RemoveAll(directory); err != nil {
			return fmt.Errorf("failed to remove an unfinished repository: %w", err)
		}
	}
	return nil
}
