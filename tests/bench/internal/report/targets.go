package report

import "fmt"

// Target is a number that this library is to reach: Top, or Top divided by Bottom.
type Target struct {
	Name   string
	Top    Ref
	Bottom Ref     // zero: Top as it is
	Scale  float64 // Top is multiplied by it; zero: 1
	AtMost bool    // less is better
	Floor  float64 // what it must reach
	Aim    float64 // what it should reach; zero: nothing beyond the floor
}

// Outcome is what became of a target.
type Outcome struct {
	Name    string  `json:"name"`
	Reached Spread  `json:"reached"`
	Floor   float64 `json:"floor"`
	Aim     float64 `json:"aim,omitempty"`
	AtMost  bool    `json:"at_most,omitempty"`
	Verdict string  `json:"verdict"`
}

// Judge gives the outcomes of those targets whose numbers were measured.
func (s Samples) Judge(targets []Target) []Outcome {
	var outcomes []Outcome
	for _, t := range targets {
		reached, ok := s.Spread(t.Top)
		if t.Bottom != (Ref{}) {
			reached, ok = s.Ratio(t.Top, t.Bottom)
		}
		if !ok {
			continue
		}
		if t.Scale != 0 {
			reached.Median *= t.Scale
			reached.Least *= t.Scale
			reached.Most *= t.Scale
		}
		outcomes = append(outcomes, Outcome{t.Name, reached, t.Floor, t.Aim, t.AtMost, t.verdict(reached.Median)})
	}
	return outcomes
}

func (t Target) verdict(median float64) string {
	reaches := func(mark float64) bool { return median >= mark }
	if t.AtMost {
		reaches = func(mark float64) bool { return median <= mark }
	}
	switch {
	case t.Aim != 0 && reaches(t.Aim):
		return "aim"
	case reaches(t.Floor):
		return "floor"
	default:
		return "missed"
	}
}

// RenderOutcomes shows outcomes as a table in Markdown.
func RenderOutcomes(outcomes []Outcome) string {
	rows := [][]string{{"target", "median", "range", "floor", "aim", "reached"}}
	for _, o := range outcomes {
		sign := "≥ "
		if o.AtMost {
			sign = "≤ "
		}
		aim := "–"
		if o.Aim != 0 {
			aim = sign + mark(o.Aim)
		}
		rows = append(rows, []string{o.Name, number(o.Reached.Median), rangeCell(o.Reached, true), sign + mark(o.Floor), aim, o.Verdict})
	}
	return "### Targets\n\n" + markdown(rows)
}

// mark shows a target as it was set.
func mark(v float64) string { return fmt.Sprintf("%g", v) }
