// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
)

// What a payload may ask of the handler.  Anything else, or no JSON at all, just succeeds.
type order struct {
	Fail   int    `json:"fail"`   // how many runs fail first
	Skip   bool   `json:"skip"`   // fail for good
	Hang   bool   `json:"hang"`   // until told to stop, and then fail
	Sleep  int    `json:"sleep"`  // milliseconds
	Result string `json:"result"` // written as the result
}

// The ledger has one line per event, each one write: WHO ID RETRIED start|done|failed|stopped.
type ledger struct{ file *os.File }

func (l *ledger) note(ctx context.Context, event string) {
	if l.file == nil {
		return
	}
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	_, err := fmt.Fprintf(l.file, "asynq-%d %s %d %s\n", os.Getpid(), id, retried, event)
	must(err)
}

func (l *ledger) ProcessTask(ctx context.Context, t *asynq.Task) error {
	var o order
	_ = json.Unmarshal(t.Payload(), &o)
	retried, _ := asynq.GetRetryCount(ctx)
	l.note(ctx, "start")
	if o.Hang {
		<-ctx.Done()
		l.note(ctx, "stopped")
		return ctx.Err()
	}
	time.Sleep(time.Duration(o.Sleep) * time.Millisecond)
	if o.Skip {
		l.note(ctx, "failed")
		return fmt.Errorf("not again: %w", asynq.SkipRetry)
	}
	if retried < o.Fail {
		l.note(ctx, "failed")
		return errors.New("asked to fail")
	}
	if o.Result != "" {
		if _, err := t.ResultWriter().Write([]byte(o.Result)); err != nil {
			return err
		}
	}
	l.note(ctx, "done")
	return nil
}

// name=weight,name=weight
func weights(text string) map[string]int {
	out := map[string]int{}
	for _, word := range strings.Split(text, ",") {
		name, weight, ok := strings.Cut(word, "=")
		out[name] = 1
		if ok {
			n, err := strconv.Atoi(weight)
			must(err)
			out[name] = n
		}
	}
	return out
}

func serve(args []string) {
	f := flag.NewFlagSet("serve", flag.ExitOnError)
	queues := f.String("queues", "default", "name=weight,...")
	concurrency := f.Int("concurrency", 10, "")
	strict := f.Bool("strict", false, "")
	path := f.String("ledger", "", "a file to append to")
	delay := f.Duration("retry-delay", 100*time.Millisecond, "")
	must(f.Parse(args))
	l := &ledger{}
	if *path != "" {
		file, err := os.OpenFile(*path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		must(err)
		l.file = file
	}
	s := asynq.NewServer(address(), asynq.Config{
		Concurrency: *concurrency, Queues: weights(*queues), StrictPriority: *strict, LogLevel: asynq.WarnLevel,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return *delay },
		TaskCheckInterval:        200 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond, ShutdownTimeout: 2 * time.Second,
	})
	must(s.Start(l))
	fmt.Println("ready")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	s.Shutdown()
}
