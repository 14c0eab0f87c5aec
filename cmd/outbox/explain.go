package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"gorm.io/gorm"
)

var explainCommand = command{
	name:  "explain",
	takes: "ID...",
	does:  "say why records have not been sent, and when that changes",
	body: `
One sentence a record: not due until when, leased by whom, waiting for which attempt after what, dead since when and of
what, or due and claimed by nobody. Neither payload nor recipient is quoted. JSON is an array of {id, found,
explanation}.`,
	example: "outbox explain 4711 4712",
	setup: func(c *call) func(ctx context.Context) error {
		return c.explain
	},
}

type explanationJSON struct {
	ID          int64   `json:"id"`
	Found       bool    `json:"found"`
	Explanation *string `json:"explanation"`
}

func (c *call) explain(ctx context.Context) error {
	if len(c.args) == 0 {
		return usageError("which records? give their ids")
	}
	ids, err := parseIDs(c.args)
	if err != nil {
		return usageError("what it takes " + err.Error())
	}
	return c.database(ctx, func(db *gorm.DB) error {
		answers := make([]explanationJSON, len(ids))
		var missing error
		for i, id := range ids {
			why, err := c.plugin.Explain(db, id)
			switch {
			case errors.Is(err, gorm.ErrRecordNotFound):
				answers[i] = explanationJSON{ID: id}
				missing = errors.Join(missing, nothingError(fmt.Sprintf("there is no record %d", id)))
			case err != nil:
				return err
			default:
				answers[i] = explanationJSON{id, true, &why}
			}
		}
		return errors.Join(c.print(answers, func(w io.Writer) { sentences(w, answers) }), missing)
	})
}

func sentences(w io.Writer, answers []explanationJSON) {
	for _, a := range answers {
		if a.Found {
			row(w, *a.Explanation)
		}
	}
}
