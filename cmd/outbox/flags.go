package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
)

// A value that is given and empty is refused everywhere: "--topic $TOPIC" with TOPIC unset must not mean all topics.
var errEmpty = errors.New("is empty")

// flag adds a flag whose values set parses. What is wrong with one is collected, so that everything is told in one go,
// and the value is not repeated: a DSN in the wrong place has a password.
func (c *call) flag(name, usage string, repeatable bool, set func(value string) error) {
	c.flags.Func(name, usage, func(value string) error {
		err := set(value)
		switch {
		case value == "":
			err = errEmpty
		case c.seen[name] && !repeatable:
			err = errors.New("is given twice")
		}
		if err != nil {
			c.problem("--" + name + " " + err.Error())
		}
		c.seen[name] = true
		return nil
	})
}

func (c *call) text(to *string, name, usage string) {
	c.flag(name, usage, false, func(value string) error {
		*to = value
		return nil
	})
}

// ids is a list of record ids, by commas or repetition.
func (c *call) ids(to *[]int64, name, usage string) {
	c.flag(name, usage, true, func(value string) error {
		ids, err := parseIDs(strings.Split(value, ","))
		*to = append(*to, ids...)
		return err
	})
}

func parseIDs(texts []string) ([]int64, error) {
	ids := make([]int64, len(texts))
	for i, text := range texts {
		id, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || id < 1 {
			return nil, errors.New("must be record ids: whole numbers above 0")
		}
		ids[i] = id
	}
	return ids, nil
}

// statuses is a list of statuses; which there are, the library knows.
func (c *call) statuses(to *[]outbox.Status, name, usage string) {
	c.flag(name, usage, true, func(value string) error {
		for status := range strings.SplitSeq(value, ",") {
			*to = append(*to, outbox.Status(strings.TrimSpace(status)))
		}
		return nil
	})
}

func (c *call) time(to *time.Time, name, usage string) {
	c.flag(name, usage, false, func(value string) (err error) {
		if *to, err = time.Parse(time.RFC3339, value); err != nil || to.IsZero() { // zero is "not given" to the library
			return errors.New("must be a time like 2026-01-31T15:04:05Z")
		}
		return nil
	})
}

func (c *call) age(to *time.Duration, name, usage string) {
	c.flag(name, usage, false, func(value string) (err error) {
		*to, err = parseAge(value)
		return err
	})
}

// parseAge is time.ParseDuration with days in front: "7d", "1d12h", "36h".
func parseAge(value string) (time.Duration, error) {
	wrong := errors.New("must be an age above 0, like 7d, 36h or 1d12h")
	var days uint64
	var err error
	if front, rest, ok := strings.Cut(value, "d"); ok {
		if days, err = strconv.ParseUint(front, 10, 64); err != nil || days > maxDays {
			return 0, wrong
		}
		value = rest
	}
	age := time.Duration(days) * 24 * time.Hour
	if value != "" {
		rest, err := time.ParseDuration(value)
		if err != nil || rest < 0 || rest > math.MaxInt64-age {
			return 0, wrong
		}
		age += rest
	}
	if age <= 0 {
		return 0, wrong
	}
	return age, nil
}

// maxDays is what a time.Duration can hold.
const maxDays = uint64(math.MaxInt64 / (24 * time.Hour))

// number is a whole number of a range, which does not hold 0: where that means "no limit" it is not said by accident.
func (c *call) number(to *int, name, usage string, most int) {
	c.flag(name, usage, false, func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("must be a whole number from 1 to %d", most)
		}
		*to = n
		return nil
	})
}

func (c *call) rate(to *float64, name, usage string) {
	c.flag(name, usage, false, func(value string) error {
		rate, err := strconv.ParseFloat(value, 64)
		if err != nil || !(rate > 0) { // also NaN
			return errors.New("must be a number above 0")
		}
		*to = rate
		return nil
	})
}
