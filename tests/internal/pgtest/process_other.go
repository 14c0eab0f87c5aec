//go:build !linux

package pgtest

import "syscall"

// dieWithParent does nothing: only Linux can tie a child to the life of its parent.
func dieWithParent(*syscall.SysProcAttr) {}
