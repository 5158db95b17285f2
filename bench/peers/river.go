// SPDX-License-Identifier: Apache-2.0

// river.go - River with the intervals of its own benchmark: a fetch every 2 ms, 2,000 workers; COPY for bulk.
// History is kept.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const size = 60
const left = "SELECT count(*) FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending')"

type noop struct {
	I int    `json:"i"`
	P string `json:"p"`
}

func (noop) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[noop]
	handle func(int)
}

func (w *worker) Work(_ context.Context, job *river.Job[noop]) error {
	w.handle(job.Args.I)
	return nil
}

func payload(i int) noop {
	head := fmt.Sprintf(`{"i":%d,"p":"`, i)
	return noop{I: i, P: strings.Repeat("x", max(0, size-len(head)-2))}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

func report(jobs int, start time.Time) {
	fmt.Printf("{\"jobs\": %d, \"seconds\": %f}\n", jobs, time.Since(start).Seconds())
}

func client(pool *pgxpool.Pool, handle func(int)) *river.Client[pgx.Tx] {
	config := &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if handle != nil {
		config.Workers = river.NewWorkers()
		river.AddWorker(config.Workers, &worker{handle: handle})
		n, err := strconv.Atoi(os.Getenv("PEER_CONCURRENCY"))
		if err != nil {
			n = 2000
		}
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: n}}
	}
	c, err := river.NewClient(riverpgxv5.New(pool), config)
	must(err)
	return c
}

func fill(ctx context.Context, c *river.Client[pgx.Tx], n, step int) {
	start := time.Now()
	for done := 0; done < n; done += step {
		if step == 1 {
			_, err := c.Insert(ctx, payload(done), nil)
			must(err)
			continue
		}
		var jobs []river.InsertManyParams
		for i := done; i < min(done+step, n); i++ {
			jobs = append(jobs, river.InsertManyParams{Args: payload(i)})
		}
		_, err := c.InsertManyFast(ctx, jobs)
		must(err)
	}
	report(n, start)
}

func drain(ctx context.Context, pool *pgxpool.Pool, n int) {
	var seen atomic.Int64
	all := make(chan struct{})
	start := time.Now()
	c := client(pool, func(int) {
		if seen.Add(1) == int64(n) {
			close(all)
		}
	})
	must(c.Start(ctx))
	<-all
	for waiting := 1; waiting > 0; {
		must(pool.QueryRow(ctx, left).Scan(&waiting))
		time.Sleep(2 * time.Millisecond)
	}
	report(n, start)
	must(c.Stop(ctx))
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "")
	must(err)
	number := func(i int) int {
		n, _ := strconv.Atoi(append(os.Args, "", "")[i])
		return n
	}
	in := bufio.NewScanner(os.Stdin)
	switch os.Args[1] {
	case "setup":
		m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		must(err)
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
		must(err)
	case "one":
		fill(ctx, client(pool, nil), number(2), 1)
	case "bulk":
		fill(ctx, client(pool, nil), number(2), number(3))
	case "drain":
		drain(ctx, pool, number(2))
	case "produce":
		c := client(pool, nil)
		fmt.Println("ready")
		for in.Scan() {
			i, _ := strconv.Atoi(in.Text())
			_, err := c.Insert(ctx, payload(i), nil)
			must(err)
			fmt.Println(i, time.Now().UnixNano())
		}
	case "work":
		c := client(pool, func(i int) { fmt.Println(i, time.Now().UnixNano()) })
		must(c.Start(ctx))
		fmt.Println("ready")
		for in.Scan() {
		}
		must(c.Stop(ctx))
	}
}
