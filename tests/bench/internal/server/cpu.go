package server

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc, the same on every Linux that Go runs on.
const tick = time.Second / 100

// cpuTime adds up what all processes of the server have used: the postmaster, its living children, and those that it
// has buried. It reports false where there is no /proc to read.
func cpuTime(postmaster int) (time.Duration, bool) {
	const tries = 10
	for range tries {
		before, ok := readStat(postmaster)
		if !ok {
			return 0, false
		}
		children, ok := childrenTicks(postmaster)
		if !ok {
			return 0, false
		}
		// A child that was buried meanwhile may have been counted twice, or not at all.
		if after, ok := readStat(postmaster); ok && after.buried == before.buried {
			return time.Duration(before.own+before.buried+children) * tick, true
		}
	}
	return 0, false
}

// childrenTicks adds up the living children.
func childrenTicks(postmaster int) (total int64, ok bool) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, false
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		if child, ok := readStat(pid); ok && child.parent == postmaster { // it may have ended just now
			total += child.own
		}
	}
	return total, true
}

// stat is what a line of /proc/PID/stat says about CPU time, in ticks.
type stat struct {
	parent      int
	own, buried int64
}

// Positions in the line, counted from the field behind the program's name.
const (
	fieldParent = 1
	fieldUser   = 11
	fieldKernel = 12
	fieldBuried = 13 // of children: user, then kernel
	fieldsUsed  = 15
)

func readStat(pid int) (stat, bool) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	// The name may hold blanks and brackets itself; the last bracket ends it.
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if len(fields) < fieldsUsed {
		return stat{}, false
	}
	number := func(field int) int64 {
		n, _ := strconv.ParseInt(fields[field], 10, 64) // the kernel writes numbers
		return n
	}
	return stat{
		parent: int(number(fieldParent)),
		own:    number(fieldUser) + number(fieldKernel),
		buried: number(fieldBuried) + number(fieldBuried+1),
	}, true
}

// isPostmaster keeps a process id of another machine from being taken for a process of this one.
func isPostmaster(pid int) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.HasPrefix(string(name), "post") // postgres, or postmaster in older packages
}
