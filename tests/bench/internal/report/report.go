// Package report turns measurements into tables, ratios and JSON.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Sample is one measurement of one contender in one case.
type Sample struct {
	Case      string             `json:"case"`
	Contender string             `json:"contender"`
	Run       int                `json:"run"` // repetitions with the same number were measured one after the other
	Values    map[string]float64 `json:"values,omitempty"`
	Problem   string             `json:"problem,omitempty"` // why it does not count, such as a message delivered twice
}

// Column is one number of a table.
type Column struct {
	Title string
	Key   string // in Sample.Values
	Range bool   // show the least and the most beside the median
}

// Table is how a case is shown.
type Table struct {
	Case    string
	About   string
	Columns []Column
	Against []string // contenders that the first column is divided by
}

// Spread is what several repetitions gave.
type Spread struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	Count  int     `json:"count"`
}

func spread(values []float64) (Spread, bool) {
	if len(values) == 0 {
		return Spread{}, false
	}
	slices.Sort(values)
	middle := len(values) / 2
	median := values[middle]
	if len(values)%2 == 0 {
		median = (values[middle-1] + values[middle]) / 2
	}
	return Spread{median, values[0], values[len(values)-1], len(values)}, true
}

// Ref names a number: of a contender, in a case.
type Ref struct{ Case, Contender, Key string }

// Samples are all measurements.
type Samples []Sample

// values gives the numbers of a ref by repetition. What has a problem does not count.
func (s Samples) values(r Ref) map[int]float64 {
	found := map[int]float64{}
	for _, sample := range s {
		if v, ok := sample.Values[r.Key]; ok && sample.Case == r.Case && sample.Contender == r.Contender && sample.Problem == "" {
			found[sample.Run] = v
		}
	}
	return found
}

// Spread sums up the repetitions of one number.
func (s Samples) Spread(r Ref) (Spread, bool) {
	var values []float64
	for _, v := range s.values(r) {
		values = append(values, v)
	}
	return spread(values)
}

// Ratio divides two numbers repetition by repetition, and sums that up: what disturbed one repetition disturbed both
// numbers alike.
func (s Samples) Ratio(top, bottom Ref) (Spread, bool) {
	var ratios []float64
	divisors := s.values(bottom)
	for run, v := range s.values(top) {
		if divisor, ok := divisors[run]; ok && divisor != 0 {
			ratios = append(ratios, v/divisor)
		}
	}
	return spread(ratios)
}

// contenders are those of a case, in the order in which they came first.
func (s Samples) contenders(name string) []string {
	var names []string
	for _, sample := range s {
		if sample.Case == name && !slices.Contains(names, sample.Contender) {
			names = append(names, sample.Contender)
		}
	}
	return names
}

// Render shows a case as a table in Markdown, with a line for each contender in the given order.
func (t Table) Render(s Samples, order func(a, b string) int) string {
	head := []string{t.Case}
	for i, c := range t.Columns {
		head = append(head, c.Title)
		if c.Range {
			head = append(head, "range")
		}
		if i == 0 {
			for _, name := range t.Against {
				head = append(head, "× "+name)
			}
		}
	}
	rows := [][]string{head}
	names := s.contenders(t.Case)
	slices.SortStableFunc(names, order)
	for _, name := range names {
		rows = append(rows, t.row(s, name))
	}
	return fmt.Sprintf("### %s: %s\n\n%s", t.Case, t.About, markdown(rows))
}

func (t Table) row(s Samples, name string) []string {
	row := []string{name}
	for i, c := range t.Columns {
		found, ok := s.Spread(Ref{t.Case, name, c.Key})
		row = append(row, cell(found.Median, ok))
		if c.Range {
			row = append(row, rangeCell(found, ok))
		}
		if i == 0 {
			for _, other := range t.Against {
				ratio, ok := s.Ratio(Ref{t.Case, name, c.Key}, Ref{t.Case, other, c.Key})
				row = append(row, cell(ratio.Median, ok))
			}
		}
	}
	return row
}

// markdown aligns cells; the first row is the head.
func markdown(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], len([]rune(text)))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, text := range row {
			fmt.Fprintf(&b, "| %s%s ", text, strings.Repeat(" ", widths[i]-len([]rune(text))))
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				b.WriteString("|" + strings.Repeat("-", width+2))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

func cell(v float64, ok bool) string {
	if !ok {
		return "–"
	}
	return number(v)
}

func rangeCell(s Spread, ok bool) string {
	if !ok || s.Count < 2 {
		return "–"
	}
	return number(s.Least) + "–" + number(s.Most)
}

// number shows three digits, two of a ratio below one, or all of those before the point.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	_, exponent, _ := strings.Cut(strconv.FormatFloat(v, 'e', 2, 64), "e") // of what is left after rounding
	size, _ := strconv.Atoi(exponent)
	switch {
	case size >= 2:
		return thousands(int64(math.Round(v)))
	case size == -1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2-size, 64)
	}
}

func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ByPosition orders names as a list does.
func ByPosition(list []string) func(a, b string) int {
	return func(a, b string) int { return cmp.Compare(slices.Index(list, a), slices.Index(list, b)) }
}

// Problems is an error with everything that went wrong.
func (s Samples) Problems() error {
	var problems []error
	for _, sample := range s {
		if sample.Problem != "" {
			problems = append(problems, fmt.Errorf("%s %s, run %d: %s", sample.Case, sample.Contender, sample.Run, sample.Problem))
		}
	}
	return errors.Join(problems...)
}
