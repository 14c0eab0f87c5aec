package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// samples are three repetitions in which the machine was slower each time, for both alike; a fourth went wrong.
var samples = Samples{
	{Case: "C", Contender: "ours", Run: 1, Values: map[string]float64{"rate": 50}},
	{Case: "C", Contender: "limit", Run: 1, Values: map[string]float64{"rate": 100}},
	{Case: "C", Contender: "limit", Run: 2, Values: map[string]float64{"rate": 80}},
	{Case: "C", Contender: "ours", Run: 2, Values: map[string]float64{"rate": 40}},
	{Case: "C", Contender: "ours", Run: 3, Values: map[string]float64{"rate": 12}},
	{Case: "C", Contender: "limit", Run: 3, Values: map[string]float64{"rate": 20}},
	{Case: "C", Contender: "ours", Run: 4, Values: map[string]float64{"rate": 9000}, Problem: "a message came twice"},
	{Case: "C", Contender: "limit", Run: 4, Values: map[string]float64{"rate": 100}},
}

func TestRatioPairsRepetitions(t *testing.T) {
	ratio, ok := samples.Ratio(Ref{"C", "ours", "rate"}, Ref{"C", "limit", "rate"})
	require.True(t, ok)
	require.Equal(t, Spread{Median: 0.5, Least: 0.5, Most: 0.6, Count: 3}, ratio)

	_, ok = samples.Ratio(Ref{"C", "ours", "rate"}, Ref{"C", "nobody", "rate"})
	require.False(t, ok)
}

func TestSpreadLeavesOutProblems(t *testing.T) {
	spread, ok := samples.Spread(Ref{"C", "ours", "rate"})
	require.True(t, ok)
	require.Equal(t, Spread{Median: 40, Least: 12, Most: 50, Count: 3}, spread)
}

func TestTable(t *testing.T) {
	table := Table{
		Case: "C", About: "a drain", Against: []string{"limit"},
		Columns: []Column{{"msg/s", "rate", true}, {"WAL B", "wal", false}},
	}
	require.Equal(t, strings.TrimLeft(`
### C: a drain

| C     | msg/s | range     | × limit | WAL B |
|-------|-------|-----------|---------|-------|
| limit | 90.0  | 20.0–100  | 1.00    | –     |
| ours  | 40.0  | 12.0–50.0 | 0.50    | –     |
`, "\n"), table.Render(samples, ByPosition([]string{"limit", "ours"})))
}

func TestJudge(t *testing.T) {
	ours, limit := Ref{"C", "ours", "rate"}, Ref{"C", "limit", "rate"}
	outcomes := samples.Judge([]Target{
		{Name: "aim", Top: ours, Bottom: limit, Floor: 0.4, Aim: 0.5},
		{Name: "floor", Top: ours, Floor: 60, Aim: 30, AtMost: true},
		{Name: "missed", Top: ours, Scale: 0.5, Floor: 30},
		{Name: "not measured", Top: Ref{"D", "ours", "rate"}, Floor: 1},
	})
	require.Len(t, outcomes, 3)
	for _, o := range outcomes {
		require.Equal(t, o.Name, o.Verdict)
	}
	require.Contains(t, RenderOutcomes(outcomes), "≤ 60")
}

func TestNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1234567.8: "1,234,568", 999.6: "1,000", 123: "123", 99.96: "100", 12.34: "12.3", 9.996: "10.0", 1.234: "1.23",
		0.00213: "0.00213",
	} {
		require.Equal(t, want, number(v))
	}
}

func TestDocument(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Document{Summaries: samples.Summaries(), Samples: samples}.Write(&out))
	var back Document
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, 40.0, back.Summaries[0].Values["rate"].Median)
}
