package main

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/server"
	"github.com/gorm-outbox/outbox/tests/internal/pgtest"
)

// settings are PostgreSQL's defaults but for two things: more memory than for a machine of the last century, and no
// checkpoint in the middle of one measurement that another is spared.
var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h",
}

// startServer starts a throwaway server, or connects to one that is there.
func startServer(ctx context.Context, dsn string) (*server.Server, func(), error) {
	stopCluster := func() {}
	if dsn == "" {
		cluster, err := startCluster()
		if err != nil {
			return nil, nil, err
		}
		dsn, stopCluster = cluster.DSN("postgres"), cluster.Stop
	}
	srv, err := server.Open(ctx, dsn)
	if err != nil {
		stopCluster()
		return nil, nil, err
	}
	return srv, func() {
		_ = srv.Close(context.WithoutCancel(ctx)) // the server may be gone already
		stopCluster()
	}, nil
}

// startCluster has statements counted where the server's packages bring the means.
func startCluster() (*pgtest.Cluster, error) {
	counting := maps.Clone(settings)
	counting["shared_preload_libraries"] = "pg_stat_statements"
	if cluster, err := pgtest.Start(pgtest.Options{Durable: true, Settings: counting}); err == nil {
		return cluster, nil
	}
	return pgtest.Start(pgtest.Options{Durable: true, Settings: settings})
}

// describe says on what the numbers depend, and nothing that names the machine.
func describe(ctx context.Context, srv *server.Server) (map[string]string, error) {
	facts, err := srv.Facts(ctx)
	if err != nil {
		return nil, err
	}
	facts["server_version"], _, _ = strings.Cut(facts["server_version"], " ") // without the packager's own
	facts["processors"] = strconv.Itoa(runtime.NumCPU())
	facts["platform"] = runtime.GOOS + "/" + runtime.GOARCH
	facts["go"] = runtime.Version()
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(measuredModules, m.Path) {
				facts[m.Path] = m.Version
			}
		}
	}
	return facts, nil
}

var measuredModules = []string{
	"github.com/riverqueue/river", "github.com/vgarvardt/gue/v5", "github.com/ThreeDotsLabs/watermill-sql/v4",
	"github.com/jackc/pgx/v5", "gorm.io/gorm",
}

func renderContenders(chosen []contender.Definition) string {
	var b strings.Builder
	for _, d := range chosen {
		fmt.Fprintf(&b, "- %s: %s\n", d.Name, d.About)
	}
	return b.String()
}

func renderEnvironment(facts map[string]string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(facts)) {
		texts = append(texts, name+" "+facts[name])
	}
	return fmt.Sprintf("Measured with: %s.\n", strings.Join(texts, "; "))
}
