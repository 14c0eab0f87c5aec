package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the unprivileged user that runs the server when the tests run as root, for whom PostgreSQL refuses to
// work. A nil account means that the current user runs it.
type account struct {
	name     string
	uid, gid int
}

func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("pgtest: read the ids of the user %s: %w", name, err)
		}
		return &account{name: name, uid: uid, gid: gid}, nil
	}
	return nil, errors.New("pgtest: PostgreSQL does not run as root, and there is no user postgres or nobody to run it: " +
		"add one, or run the tests as another user")
}

// makeTempDir makes the cluster's directory, one that the account owns and can reach: TMPDIR may lie in root's home.
func (a *account) makeTempDir() (string, error) {
	const pattern = "outbox-pgtest-"
	if a == nil {
		dir, err := os.MkdirTemp("", pattern)
		if err != nil {
			return "", fmt.Errorf("pgtest: make the cluster's directory: %w", err)
		}
		return dir, nil
	}
	for _, parent := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if !a.reaches(parent) {
			continue
		}
		dir, err := os.MkdirTemp(parent, pattern)
		if err != nil {
			return "", fmt.Errorf("pgtest: make the cluster's directory: %w", err)
		}
		if err := os.Chown(dir, a.uid, a.gid); err != nil {
			return "", errors.Join(fmt.Errorf("pgtest: give the cluster's directory to %s: %w", a.name, err), os.Remove(dir))
		}
		return dir, nil
	}
	return "", fmt.Errorf("pgtest: the user %s, who runs the server, can reach neither %s nor /tmp nor /var/tmp: "+
		"set TMPDIR to a directory that everybody may enter", a.name, os.TempDir())
}

// reaches says whether the account may enter the directory and all of those above it.
func (a *account) reaches(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() || !a.mayEnter(info) {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

func (a *account) mayEnter(dir os.FileInfo) bool {
	owner, ok := dir.Sys().(*syscall.Stat_t)
	switch {
	case ok && int(owner.Uid) == a.uid:
		return dir.Mode()&0o100 != 0
	case ok && int(owner.Gid) == a.gid:
		return dir.Mode()&0o010 != 0
	default:
		return dir.Mode()&0o001 != 0
	}
}

// sysProcAttr makes a command run as the account.
func (a *account) sysProcAttr() *syscall.SysProcAttr {
	if a == nil {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
}
