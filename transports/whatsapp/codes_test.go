package whatsapp

import (
	_ "embed"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

//go:embed testdata/codes.md
var codesTable string

// tableRow is a row of the written table: what each of its codes has to mean.
type tableRow struct {
	codes    []string // "131026" or "200-299"
	category policy.Category
	class    policy.Class
	wait     time.Duration
}

// readTable reads the written table.
func readTable(t *testing.T) []tableRow {
	t.Helper()
	units := map[string]time.Duration{"min": time.Minute, "h": time.Hour}
	class := regexp.MustCompile(`^(P|T)(?:≥(\d+) (min|h))?$`)
	var rows []tableRow
	for _, line := range strings.Split(codesTable, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !regexp.MustCompile(`^ \d`).MatchString(cells[1]) {
			continue
		}
		said := class.FindStringSubmatch(strings.TrimSpace(cells[4]))
		require.NotNil(t, said, line)
		row := tableRow{
			codes: strings.Split(strings.TrimSpace(cells[1]), ", "), category: policy.Category(strings.TrimSpace(cells[3])),
			class: map[string]policy.Class{"P": policy.Permanent, "T": policy.Transient}[said[1]],
		}
		if said[2] != "" {
			n, err := strconv.Atoi(said[2])
			require.NoError(t, err)
			row.wait = time.Duration(n) * units[said[3]]
		}
		rows = append(rows, row)
	}
	require.Len(t, rows, strings.Count(codesTable, "\n")-6, "every row is read")
	return rows
}

// numbers are the codes that a cell names: of a block the ends and one between.
func numbers(t *testing.T, cell string) []int {
	t.Helper()
	first, last, block := strings.Cut(cell, "-")
	from, err := strconv.Atoi(first)
	require.NoError(t, err)
	if !block {
		return []int{from}
	}
	to, err := strconv.Atoi(last)
	require.NoError(t, err)
	return []int{from, (from + to) / 2, to}
}

// TestEveryCodeMeansWhatTheTableSays answers with each code under statuses that would mean something else.
func TestEveryCodeMeansWhatTheTableSays(t *testing.T) {
	for _, row := range readTable(t) {
		for _, cell := range row.codes {
			for _, code := range numbers(t, cell) {
				t.Run(strconv.Itoa(code), func(t *testing.T) {
					for _, status := range []int{400, 401, 403, 404, 422, 429, 500, 503} {
						f := readRefusal([]byte(`{"error":{"code":`+strconv.Itoa(code)+`}}`)).failure(status, nil, Message{Attempt: 1}, time.Time{})
						require.Equal(t, row.category, f.Category)
						require.Equal(t, row.class, policy.Classify(f))
						require.Equal(t, row.wait, f.RetryAfter)
						require.Equal(t, strconv.Itoa(code), f.Code)
					}
				})
			}
		}
	}
}

// TestTheTableHasEveryRule finds rules that nobody has written down.
func TestTheTableHasEveryRule(t *testing.T) {
	written := map[int]bool{}
	for _, row := range readTable(t) {
		for _, cell := range row.codes {
			for _, code := range numbers(t, cell) {
				written[code] = true
			}
		}
	}
	for code := range metaCodes {
		require.True(t, written[code], "code %d is in no row", code)
	}
	for _, block := range metaRanges {
		require.True(t, written[block.from] && written[block.to], "the block from %d is in no row", block.from)
	}
}

func TestStatusesWithoutACode(t *testing.T) {
	tests := []struct {
		status   int
		body     string
		category policy.Category
		class    policy.Class
		code     string
		unknown  bool
	}{
		{401, `{"error":"Unauthorized"}`, "credentials", policy.Permanent, "http_401", false},
		{403, `{"error":"forbidden"}`, "credentials", policy.Permanent, "forbidden", false},
		{402, `{"error":"Paid sends are paused","message":"Add a card"}`, "billing", policy.Permanent, "http_402", false},
		{404, `{"error":"Not found","message":"Phone number not in project"}`, "credentials", policy.Permanent, "http_404", false},
		{422, `{"error":"Unprocessable"}`, "window", policy.Permanent, "http_422", false},
		{422, `{"error":"Template not found"}`, "template", policy.Permanent, "http_422", false},
		{422, `{"error":"x","code":"marketing_preference_stopped"}`, "rejected", policy.Permanent, "marketing_preference_stopped", false},
		{400, `{"error":"Bad request","message":"Outside the 24-hour window"}`, "window", policy.Permanent, "http_400", false},
		{400, `{"error":{"message":"(no code) Recipient phone"}}`, "number", policy.Permanent, "http_400", false},
		{400, `{"error":"x"}`, "rejected", policy.Permanent, "x", false},
		{400, `<html>`, "rejected", policy.Permanent, "http_400", false},
		{413, ``, "rejected", policy.Permanent, "http_413", false},
		{429, `{"error":"rate_limit_exceeded"}`, "rate_limited", policy.Transient, "rate_limit_exceeded", false},
		{408, ``, "network", policy.Transient, "http_408", true},
		{425, ``, "network", policy.Transient, "http_425", false},
		{500, `{"error":"oops"}`, "network", policy.Transient, "oops", true},
		{502, `<html>`, "network", policy.Transient, "http_502", true},
		{503, ``, "network", policy.Transient, "http_503", true},
		{302, ``, "network", policy.Transient, "redirect", false},
		{308, ``, "network", policy.Transient, "redirect", false},
		{999, ``, "network", policy.Transient, "http_999", true},
	}
	for _, tt := range tests {
		t.Run(strconv.Itoa(tt.status)+" "+tt.body, func(t *testing.T) {
			f := readRefusal([]byte(tt.body)).failure(tt.status, nil, Message{Attempt: 1}, time.Time{})
			require.Equal(t, tt.category, f.Category)
			require.Equal(t, tt.class, policy.Classify(f))
			require.Equal(t, tt.code, f.Code)
			require.Equal(t, tt.unknown, f.OutcomeUnknown)
		})
	}
}

func TestCodesThatNobodyKnows(t *testing.T) {
	tests := []struct {
		status   int
		body     string
		category policy.Category
		class    policy.Class
		unknown  bool
	}{
		{401, `{"error":{"code":987654}}`, "credentials", policy.Permanent, false},
		{403, `{"error":{"code":987654}}`, "credentials", policy.Permanent, false},
		{404, `{"error":{"code":987654}}`, "rejected", policy.Permanent, false},
		{400, `{"error":{"code":987654}}`, "rejected", policy.Transient, false},
		{422, `{"error":{"code":987654,"message":"template"}}`, "rejected", policy.Transient, false},
		{429, `{"error":{"code":987654}}`, "rate_limited", policy.Transient, false},
		{500, `{"error":{"code":987654}}`, "network", policy.Transient, true},
		{401, `{"error":{"code":987654,"is_transient":true}}`, "network", policy.Transient, false},
		{429, `{"error":{"code":987654,"is_transient":true}}`, "rate_limited", policy.Transient, false},
		{400, `{"error":{"code":132001,"is_transient":true}}`, "template", policy.Permanent, false},
		{401, `{"error":{"is_transient":"true"}}`, "credentials", policy.Permanent, false},
	}
	for _, tt := range tests {
		t.Run(strconv.Itoa(tt.status)+" "+tt.body, func(t *testing.T) {
			f := readRefusal([]byte(tt.body)).failure(tt.status, nil, Message{Attempt: 1}, time.Time{})
			require.Equal(t, tt.category, f.Category)
			require.Equal(t, tt.class, policy.Classify(f))
			require.Equal(t, tt.unknown, f.OutcomeUnknown)
		})
	}
}

// TestOutcomeOfServerErrors: a code that names a refusal is one, under whatever status it comes.
func TestOutcomeOfServerErrors(t *testing.T) {
	for code, unknown := range map[int]bool{1: true, 2: true, 131000: true, 131016: false, 130429: false, 133004: false, 3: false} {
		r := readRefusal([]byte(`{"error":{"code":` + strconv.Itoa(code) + `}}`))
		require.Equal(t, unknown, r.failure(http.StatusInternalServerError, nil, Message{}, time.Time{}).OutcomeUnknown, code)
		require.False(t, r.failure(http.StatusBadRequest, nil, Message{}, time.Time{}).OutcomeUnknown, code)
	}
}

// TestWaitsThatAreNotEverybodys: a limit of one recipient or one sender holds up nobody else.
func TestWaitsThatAreNotEverybodys(t *testing.T) {
	for code, alone := range map[int]bool{131056: true, 131048: true, 131064: true, 132069: true, 130429: false, 80007: false} {
		f := readRefusal([]byte(`{"error":{"code":`+strconv.Itoa(code)+`}}`)).failure(400, nil, Message{}, time.Time{})
		require.Equal(t, alone, f.RetryAlone, code)
	}
}

func TestMediumUpload(t *testing.T) {
	byLink := Template{Header: Header{Kind: HeaderImage, Link: "https://example.test/a.png"}}
	tests := []struct {
		name string
		m    Message
		want policy.Class
	}{
		{"by link, first", Message{Template: byLink, Attempt: 1}, policy.Transient},
		{"by link, second", Message{Template: byLink, Attempt: 2}, policy.Permanent},
		{"by id", Message{Template: Template{Header: Header{Kind: HeaderImage, ID: "1"}}, Attempt: 1}, policy.Permanent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := readRefusal([]byte(`{"error":{"code":131053}}`)).failure(400, nil, tt.m, time.Time{})
			require.Equal(t, tt.want, policy.Classify(f))
			require.Equal(t, policy.CategoryRejected, f.Category)
		})
	}
}
