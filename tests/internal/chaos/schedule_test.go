package chaos

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestASeedGivesOneSchedule(t *testing.T) {
	require.Equal(t, Schedule(7, 4, 3), Schedule(7, 4, 3))
	require.NotEqual(t, Schedule(7, 4, 3), Schedule(8, 4, 3))
	require.Equal(t, Blocks(7, 1, 500), Blocks(7, 1, 500))
	require.NotEqual(t, Blocks(7, 1, 500), Blocks(7, 2, 500))
}

func TestSchedule(t *testing.T) {
	for seed := range uint64(200) {
		faults := Schedule(seed, 4, 2)
		kinds := map[Kind]int{}
		for _, f := range faults {
			kinds[f.Kind]++
			require.Less(t, f.Worker, 4)
			require.Less(t, f.At, 2*Cycle)
			if f.Kind == Stop || f.Kind == Outage {
				require.Less(t, f.At%Cycle, Cycle*3/5, "over before the cycle is")
				require.GreaterOrEqual(t, f.For, 6*time.Second, "longer than a lease")
			}
		}
		require.True(t, slices.IsSortedFunc(faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) }))
		for _, card := range deck {
			require.Equal(t, 2*card.times, kinds[card.kind], card.kind)
		}
	}
	require.Contains(t, Fault{At: 1500 * time.Millisecond, Kind: Stop, Worker: 2, For: time.Second}.String(), "1.50s worker 2: worker stopped, for 1s")
	require.Contains(t, Fault{Kind: Crash, Worker: Everybody}.String(), "everybody: server crashed")
}

func TestBlocks(t *testing.T) {
	blocks := Blocks(3, 0, 2000)
	committed, undone, keys := 0, 0, map[string]int{}
	for _, b := range blocks {
		facts := b.Committed()
		committed += len(facts)
		undone += len(b.Facts) - len(facts)
		for _, f := range facts {
			require.NotEmpty(t, f.Plan)
			if f.Key != "" {
				keys[f.Key]++
			}
		}
	}
	repeated := 0
	for _, n := range keys {
		repeated += n - 1
	}
	require.InDelta(t, 2000, committed, 10)
	require.Greater(t, undone, 200)
	require.Greater(t, repeated, 50)
	content := Content{Plan: []Behaviour{Refuser, Quick}}
	require.Equal(t, []Behaviour{Refuser, Quick, Quick}, []Behaviour{content.Behaviour(1), content.Behaviour(2), content.Behaviour(3)})
}
