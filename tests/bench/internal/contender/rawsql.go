package contender

// rawLease keeps the lease where the claim looks for work: claiming moves available_at, which is indexed. Finished rows
// stay.
var rawLease = rawQueue{
	schema: []string{
		`CREATE TABLE raw_messages (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payload jsonb NOT NULL,
	available_at timestamptz NOT NULL DEFAULT now(),
	attempts integer NOT NULL DEFAULT 0,
	token bigint,
	done_at timestamptz)`,
		`CREATE INDEX raw_messages_claim ON raw_messages (available_at, id) WHERE done_at IS NULL`,
	},
	insert: rawInsert,
	bulk:   rawBulk,
	claim: `
UPDATE raw_messages SET available_at = now() + interval '1 minute', token = $1, attempts = attempts + 1
WHERE id = ANY(ARRAY(
	SELECT id FROM raw_messages WHERE done_at IS NULL AND available_at <= now()
	ORDER BY available_at, id LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id, payload`,
	complete: `
UPDATE raw_messages AS m SET done_at = now(), token = NULL
FROM unnest($1::bigint[], $2::bigint[]) AS d (id, token)
WHERE m.id = d.id AND m.token = d.token`,
	history:  `UPDATE raw_messages SET done_at = now(), attempts = 1`,
	finished: `done_at IS NOT NULL AND attempts = 1`,
}

// rawHot keeps the lease out of every index, and half of each page free: a claim writes the new version of a row beside
// the old one and touches no index. Finished rows are deleted.
var rawHot = rawQueue{
	schema: []string{
		`CREATE TABLE raw_messages (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payload jsonb NOT NULL,
	available_at timestamptz NOT NULL DEFAULT now(),
	attempts integer NOT NULL DEFAULT 0,
	token bigint,
	leased_until timestamptz) WITH (fillfactor = 50)`,
		`CREATE INDEX raw_messages_claim ON raw_messages (available_at, id)`,
	},
	insert: rawInsert,
	bulk:   rawBulk,
	claim: `
UPDATE raw_messages SET leased_until = now() + interval '1 minute', token = $1, attempts = attempts + 1
WHERE id = ANY(ARRAY(
	SELECT id FROM raw_messages WHERE available_at <= now() AND (leased_until IS NULL OR leased_until <= now())
	ORDER BY available_at, id LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id, payload`,
	complete: `
DELETE FROM raw_messages AS m
USING unnest($1::bigint[], $2::bigint[]) AS d (id, token)
WHERE m.id = d.id AND m.token = d.token`,
	finished: `false`,
}

const (
	rawInsert = `INSERT INTO raw_messages (payload) VALUES ($1)`
	rawBulk   = `INSERT INTO raw_messages (payload) SELECT unnest($1::jsonb[])`
)
