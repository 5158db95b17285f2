// SPDX-License-Identifier: Apache-2.0

// asynq.go - asynq with 50 handlers at once and its default settings otherwise.  From 2 to 300 makes no difference that can be
// told from noise: one loop takes the tasks, a script call each.  There is no call for many tasks: bulk is as many enqueues from 16 goroutines.  Finished tasks are deleted,
// which is its default and less work than keeping them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

const size = 60
const queue = "default"
const producers = 16

func payload(i int) []byte {
	head := fmt.Sprintf(`{"i":%d,"p":"`, i)
	return []byte(head + strings.Repeat("x", max(0, size-len(head)-2)) + `"}`)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "asynq:", err)
		os.Exit(1)
	}
}

func report(jobs int, start time.Time) {
	fmt.Printf("{\"jobs\": %d, \"seconds\": %f}\n", jobs, time.Since(start).Seconds())
}

func add(c *asynq.Client, i int) {
	_, err := c.Enqueue(asynq.NewTask("noop", payload(i)))
	must(err)
}

func fill(c *asynq.Client, n, side int) {
	start := time.Now()
	var wg sync.WaitGroup
	for p := range side {
		wg.Go(func() {
			for i := p; i < n; i += side {
				add(c, i)
			}
		})
	}
	wg.Wait()
	report(n, start)
}

func server(redis asynq.RedisConnOpt, handle func(int)) *asynq.Server {
	concurrency, err := strconv.Atoi(os.Getenv("PEER_CONCURRENCY"))
	if err != nil {
		concurrency = 50
	}
	s := asynq.NewServer(redis, asynq.Config{Concurrency: concurrency, LogLevel: asynq.ErrorLevel})
	must(s.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var job struct {
			I int `json:"i"`
		}
		if err := json.Unmarshal(t.Payload(), &job); err != nil {
			return err
		}
		handle(job.I)
		return nil
	})))
	return s
}

func drain(redis asynq.RedisConnOpt, n int) {
	var seen atomic.Int64
	all := make(chan struct{})
	in := asynq.NewInspector(redis)
	start := time.Now()
	s := server(redis, func(int) {
		if seen.Add(1) == int64(n) {
			close(all)
		}
	})
	<-all
	for left := 1; left > 0; time.Sleep(2 * time.Millisecond) {
		info, err := in.GetQueueInfo(queue)
		must(err)
		left = info.Pending + info.Active
	}
	report(n, start)
	s.Shutdown()
}

func main() {
	redis, err := asynq.ParseRedisURI("redis-socket://" + os.Getenv("PEER_REDIS"))
	must(err)
	number := func(i int) int {
		n, _ := strconv.Atoi(append(os.Args, "", "")[i])
		return n
	}
	lines := bufio.NewScanner(os.Stdin)
	switch os.Args[1] {
	case "setup":
	case "one":
		fill(asynq.NewClient(redis), number(2), 1)
	case "bulk":
		fill(asynq.NewClient(redis), number(2), producers)
	case "drain":
		drain(redis, number(2))
	case "produce":
		c := asynq.NewClient(redis)
		fmt.Println("ready")
		for lines.Scan() {
			i, _ := strconv.Atoi(lines.Text())
			add(c, i)
			fmt.Println(i, time.Now().UnixNano())
		}
	case "work":
		s := server(redis, func(i int) { fmt.Println(i, time.Now().UnixNano()) })
		fmt.Println("ready")
		for lines.Scan() {
		}
		s.Shutdown()
	}
}
