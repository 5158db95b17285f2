// SPDX-License-Identifier: Apache-2.0

// asynq - the published asynq module behind a command line, for tests that put it beside stint on one Redis.
//
//	asynq enqueue [flags] TYPE [PAYLOAD]    one task, or -count of them from four goroutines
//	asynq serve [flags]                     a server whose handlers do what the payload says, and write a ledger
//	asynq inspect WHAT ...                  what Inspector sees: queues, tasks QUEUE STATE, task QUEUE ID, servers, history QUEUE
//	asynq cancel ID                         tells whoever runs it
//	asynq pause|unpause QUEUE
//	asynq run|archive|delete QUEUE ID
//
// ASYNQ_REDIS is the server's address: redis://HOST:PORT/DB or redis-socket:///PATH.  What comes out is JSON.  The exit
// code is 0, or 1 with the error on standard error.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "asynq:", err)
		os.Exit(1)
	}
}

func usage(text string) {
	fmt.Fprintln(os.Stderr, "asynq:", text)
	os.Exit(2)
}

func address() asynq.RedisConnOpt {
	opt, err := asynq.ParseRedisURI(os.Getenv("ASYNQ_REDIS"))
	must(err)
	return opt
}

func printJSON(v any) {
	text, err := json.Marshal(v)
	must(err)
	fmt.Println(string(text))
}

// A flag that may be given again: -header a=1 -header b=2.
type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("NAME=VALUE is wanted")
	}
	p[name] = value
	return nil
}

// What an enqueue is asked for; zero values are left to asynq.
type wish struct {
	queue, id, group                        string
	in, unique, retention, timeout, expires time.Duration
	retry, count                            int
	headers                                 pairs
}

func parseWish(args []string) (*wish, []string) {
	w := &wish{headers: pairs{}}
	f := flag.NewFlagSet("enqueue", flag.ExitOnError)
	f.StringVar(&w.queue, "queue", "default", "")
	f.StringVar(&w.id, "id", "", "TaskID; with -count a number follows")
	f.StringVar(&w.group, "group", "", "")
	f.DurationVar(&w.in, "in", 0, "ProcessIn")
	f.DurationVar(&w.unique, "unique", 0, "")
	f.DurationVar(&w.retention, "retention", 0, "")
	f.DurationVar(&w.timeout, "timeout", 0, "")
	f.DurationVar(&w.expires, "deadline", 0, "Deadline, from now")
	f.IntVar(&w.retry, "max-retry", -1, "")
	f.IntVar(&w.count, "count", 1, "")
	f.Var(w.headers, "header", "NAME=VALUE")
	must(f.Parse(args))
	return w, f.Args()
}

func (w *wish) options(n int) []asynq.Option {
	opts := []asynq.Option{asynq.Queue(w.queue)}
	add := func(wanted bool, o asynq.Option) {
		if wanted {
			opts = append(opts, o)
		}
	}
	id := w.id
	if w.count > 1 {
		id = fmt.Sprint(w.id, n)
	}
	if w.id != "" {
		opts = append(opts, asynq.TaskID(id)) // asynq refuses an empty one
	}
	if w.group != "" {
		opts = append(opts, asynq.Group(w.group))
	}
	add(w.in > 0, asynq.ProcessIn(w.in))
	add(w.unique > 0, asynq.Unique(max(w.unique, time.Second)))
	add(w.retention > 0, asynq.Retention(w.retention))
	add(w.timeout > 0, asynq.Timeout(w.timeout))
	add(w.expires > 0, asynq.Deadline(time.Now().Add(w.expires)))
	add(w.retry >= 0, asynq.MaxRetry(w.retry))
	return opts
}

// One enqueue's answer: an id, or why not.
type added struct {
	ID    string `json:"id,omitempty"`
	State string `json:"state,omitempty"`
	Error string `json:"error,omitempty"`
}

func (w *wish) send(c *asynq.Client, kind string, payload []byte, n int) added {
	info, err := c.Enqueue(asynq.NewTaskWithHeaders(kind, payload, w.headers), w.options(n)...)
	switch {
	case errors.Is(err, asynq.ErrDuplicateTask):
		return added{Error: "duplicate"}
	case errors.Is(err, asynq.ErrTaskIDConflict):
		return added{Error: "conflict"}
	}
	must(err)
	return added{ID: info.ID, State: info.State.String()}
}

func enqueue(args []string) {
	w, rest := parseWish(args)
	if len(rest) < 1 || len(rest) > 2 {
		usage("enqueue [flags] TYPE [PAYLOAD]")
	}
	var payload []byte
	if len(rest) == 2 {
		payload = []byte(rest[1])
	}
	c := asynq.NewClient(address())
	defer c.Close()
	out := make([]added, w.count)
	const producers = 4
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for n := p; n < w.count; n += producers {
				out[n] = w.send(c, rest[0], payload, n)
			}
		})
	}
	wg.Wait()
	printJSON(out)
}

func main() {
	if len(os.Args) < 2 {
		usage("enqueue, serve, inspect, cancel, pause, unpause, run, archive or delete?")
	}
	args := append(os.Args[2:], "", "")
	switch os.Args[1] {
	case "enqueue":
		enqueue(os.Args[2:])
	case "serve":
		serve(os.Args[2:])
	case "inspect":
		inspect(os.Args[2:])
	case "cancel":
		must(inspector().CancelProcessing(args[0]))
	case "pause":
		must(inspector().PauseQueue(args[0]))
	case "unpause":
		must(inspector().UnpauseQueue(args[0]))
	case "run":
		must(inspector().RunTask(args[0], args[1]))
	case "archive":
		must(inspector().ArchiveTask(args[0], args[1]))
	case "delete":
		must(inspector().DeleteTask(args[0], args[1]))
	default:
		usage("no such command: " + os.Args[1])
	}
}
