package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/report"
	"github.com/gorm-outbox/outbox/tests/bench/internal/workload"
)

// options are the command line.
type options struct {
	cases      []workload.Case
	contenders []contender.Definition
	sizes      workload.Sizes
	runs       int
	dsn        string
	jsonFile   string
	given      map[string]string // the flags as they came out, for the report
}

// quick are the flags of -quick, which fits in about three minutes. One that is given too wins.
var quick = map[string]string{
	"workloads": "A8,A32,B,C1,D20ms,E,G", "contenders": "outbox,outbox-1000,outbox-keys,outbox-delete,outbox-wake,raw-lease,river-tuned,no-outbox-gorm",
	"n": "20000", "runs": "3", "period": "1s", "settle": "1s", "limit": "10s",
}

func parseOptions(args []string, complain io.Writer) (options, error) {
	o := options{given: map[string]string{}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(complain)
	cases := flags.String("workloads", "A,B,C,D,E,F,X,G", "`cases` to measure, by the beginnings of their names: "+strings.Join(caseNames(), " "))
	names := flags.String("contenders", "", "`names` to measure; empty: all of "+strings.Join(contenderNames(), " "))
	flags.IntVar(&o.sizes.Messages, "n", 100_000, "`messages` in a drain and a bulk enqueue")
	flags.IntVar(&o.sizes.Background, "background", 1_000_000, "`rows` in the way in F")
	flags.DurationVar(&o.sizes.Period, "period", 5*time.Second, "`time` of an enqueue; latencies take five of these, idling two")
	flags.DurationVar(&o.sizes.Settle, "settle", 2*time.Second, "`time` that workers get to start up before latencies and idling count")
	flags.DurationVar(&o.sizes.Limit, "limit", 20*time.Second, "`time` after which a drain is cut off, and its rate so far counts")
	flags.IntVar(&o.runs, "runs", 5, "`repetitions`, of which the median counts")
	flags.StringVar(&o.dsn, "dsn", "", "`URL` of a server to use, postgres://user@host:port/database; empty: a throwaway one")
	flags.StringVar(&o.jsonFile, "json", "", "`file` for all numbers")
	fast := flags.Bool("quick", false, "a selection that takes about three minutes; other flags still count")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *fast {
		useQuick(flags)
	}
	var casesErr, namesErr error
	o.cases, casesErr = chooseCases(*cases)
	o.contenders, namesErr = chooseContenders(*names)
	err := errors.Join(casesErr, namesErr, o.check())
	if err != nil {
		fmt.Fprintln(complain, err)
	}
	flags.VisitAll(func(f *flag.Flag) {
		if f.Name != "dsn" && f.Name != "json" { // those say where, not what
			o.given[f.Name] = f.Value.String()
		}
	})
	return o, err
}

// useQuick sets the flags that were not given.
func useQuick(flags *flag.FlagSet) {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range quick {
		if !given[name] {
			_ = flags.Set(name, value) // a test holds that they are valid
		}
	}
}

func (o options) check() error {
	if o.sizes.Messages < 20 || o.sizes.Background < 1 || o.sizes.Period <= 0 || o.sizes.Limit <= 0 || o.runs < 1 {
		return errors.New("-n must be 20 or more, and -background, -period, -limit and -runs positive")
	}
	return nil
}

func caseNames() []string {
	var names []string
	for _, c := range workload.All() {
		names = append(names, c.Case)
	}
	return names
}

func contenderNames() []string {
	var names []string
	for _, d := range contender.All() {
		names = append(names, d.Name)
	}
	return names
}

func chooseCases(list string) ([]workload.Case, error) {
	chosen := map[string]bool{}
	for _, prefix := range strings.Split(list, ",") {
		found := false
		for _, name := range caseNames() {
			if strings.HasPrefix(name, prefix) {
				chosen[name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("-workloads: %q begins none of %s", prefix, strings.Join(caseNames(), " "))
		}
	}
	return slices.DeleteFunc(workload.All(), func(c workload.Case) bool { return !chosen[c.Case] }), nil
}

func chooseContenders(list string) ([]contender.Definition, error) {
	if list == "" {
		return contender.All(), nil
	}
	var chosen []contender.Definition
	for _, name := range strings.Split(list, ",") {
		d, ok := contender.Find(name)
		if !ok {
			return nil, fmt.Errorf("-contenders: %q is none of %s", name, strings.Join(contenderNames(), " "))
		}
		chosen = append(chosen, d)
	}
	return chosen, nil
}

func (o options) writeJSON(d report.Document) (err error) {
	if o.jsonFile == "" {
		return nil
	}
	f, err := os.Create(o.jsonFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return d.Write(f)
}
