package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"
)

// print writes one result: v as JSON if that was asked for, else what text writes, whose tabs align.
func (c *call) print(v any, text func(w io.Writer)) error {
	var buffer bytes.Buffer
	if c.json {
		encoder := json.NewEncoder(&buffer)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(v); err != nil {
			return err
		}
	} else {
		table := tabwriter.NewWriter(&buffer, 0, 0, 2, ' ', 0)
		text(table)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	_, err := c.stdout.Write(buffer.Bytes())
	return err
}

// row writes one line of a table. What stands in a cell came from outside and must not steer a terminal.
func row(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		if texts[i] = clean(fmt.Sprint(cell)); texts[i] == "" {
			texts[i] = "-"
		}
	}
	_, _ = fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// clean escapes what is not to be seen: control characters, line ends, marks that turn the direction of writing.
func clean(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// stamp is a time in a table.
func stamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// utc is a time in JSON.
func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// note tells a person something beside the result; scripts read JSON and need no word.
func (c *call) note(format string, args ...any) {
	if !c.json {
		_, _ = fmt.Fprintf(c.stderr, format+"\n", args...)
	}
}

// maxQuiet is the longest time without a word on what is going on.
const maxQuiet = 10 * time.Second

// watch tells on stderr what is going on: after a second, and then less and less often. The end of it waits for the
// last word.
func (c *call) watch(doing func() string) (end func()) {
	began, done := time.Now(), make(chan struct{})
	var talk sync.WaitGroup
	talk.Go(func() {
		for wait := time.Second; ; wait = min(2*wait, maxQuiet) {
			select {
			case <-done:
				return
			case <-time.After(wait):
				_, _ = fmt.Fprintf(c.stderr, "outbox %s: %s, %v\n", c.name, doing(), time.Since(began).Round(time.Second))
			}
		}
	})
	return func() {
		close(done)
		talk.Wait()
	}
}

// tally is how many records a command has dealt with.
type tally struct {
	done   string // what was done to them, the name in JSON too: "purged"
	of     string // what they are; empty: records
	count  int64
	dryRun bool
	err    error // what kept it from going on
}

// report prints a tally and gives back its error. What was done before a failure is told; a refusal has done nothing.
func (c *call) report(t tally) error {
	if exitCode(t.err) == exitUsage {
		return t.err
	}
	complete := t.err == nil || exitCode(t.err) == exitNothing
	v := map[string]any{t.done: t.count, "dry_run": t.dryRun, "complete": complete}
	err := c.print(v, func(w io.Writer) { _, _ = fmt.Fprintln(w, t.sentence(complete)) })
	if err != nil {
		return err
	}
	return t.err
}

func (t tally) sentence(complete bool) string {
	records := t.of
	if records == "" {
		records = "record"
	}
	if t.count != 1 {
		records += "s"
	}
	switch {
	case t.dryRun && complete:
		return fmt.Sprintf("%d %s would be %s; nothing was changed", t.count, records, t.done)
	case t.dryRun:
		return fmt.Sprintf("%d %s counted before it stopped; nothing was changed", t.count, records)
	case complete:
		return fmt.Sprintf("%d %s %s", t.count, records, t.done)
	default:
		return fmt.Sprintf("%d %s %s before it stopped", t.count, records, t.done)
	}
}
