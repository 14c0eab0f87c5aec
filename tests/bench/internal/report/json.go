package report

import (
	"encoding/json"
	"io"
)

// Document is everything about one run, for programs.
type Document struct {
	Environment map[string]string `json:"environment"`
	Options     map[string]string `json:"options"`
	Summaries   []Summary         `json:"summaries"`
	Targets     []Outcome         `json:"targets"`
	Samples     Samples           `json:"samples"`
}

// Summary is all numbers of a contender in a case.
type Summary struct {
	Case      string            `json:"case"`
	Contender string            `json:"contender"`
	Values    map[string]Spread `json:"values"`
}

// Summaries sums up the repetitions.
func (s Samples) Summaries() []Summary {
	var summaries []Summary
	at := map[[2]string]int{}
	for _, sample := range s {
		id := [2]string{sample.Case, sample.Contender}
		if _, known := at[id]; !known {
			at[id] = len(summaries)
			summaries = append(summaries, Summary{sample.Case, sample.Contender, map[string]Spread{}})
		}
		for key := range sample.Values {
			if spread, ok := s.Spread(Ref{sample.Case, sample.Contender, key}); ok {
				summaries[at[id]].Values[key] = spread
			}
		}
	}
	return summaries
}

// Write writes the document.
func (d Document) Write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}
