// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

func inspector() *asynq.Inspector { return asynq.NewInspector(address()) }

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// A task as Inspector gives it, with text for bytes and seconds for times.
func task(i *asynq.TaskInfo) map[string]any {
	return map[string]any{
		"id": i.ID, "queue": i.Queue, "type": i.Type, "payload": string(i.Payload), "headers": i.Headers, "state": i.State.String(),
		"max_retry": i.MaxRetry, "retried": i.Retried, "last_error": i.LastErr, "last_failed_at": unix(i.LastFailedAt),
		"timeout": i.Timeout.Seconds(), "deadline": unix(i.Deadline), "group": i.Group, "next_process_at": unix(i.NextProcessAt),
		"orphaned": i.IsOrphaned, "retention": i.Retention.Seconds(), "completed_at": unix(i.CompletedAt), "result": string(i.Result),
	}
}

func queue(i *asynq.QueueInfo) map[string]any {
	return map[string]any{
		"pending": i.Pending, "active": i.Active, "scheduled": i.Scheduled, "retry": i.Retry, "archived": i.Archived,
		"completed": i.Completed, "aggregating": i.Aggregating, "size": i.Size, "paused": i.Paused, "processed": i.Processed,
		"failed": i.Failed, "processed_total": i.ProcessedTotal, "failed_total": i.FailedTotal, "latency": i.Latency.Seconds(),
	}
}

func queues(in *asynq.Inspector) map[string]any {
	names, err := in.Queues()
	must(err)
	out := map[string]any{}
	for _, name := range names {
		info, err := in.GetQueueInfo(name)
		must(err)
		out[name] = queue(info)
	}
	return out
}

func tasks(in *asynq.Inspector, name, state string) []any {
	list, ok := map[string]func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		"pending": in.ListPendingTasks, "active": in.ListActiveTasks, "scheduled": in.ListScheduledTasks,
		"retry": in.ListRetryTasks, "archived": in.ListArchivedTasks, "completed": in.ListCompletedTasks,
	}[state]
	if !ok {
		usage("no such state: " + state)
	}
	const size = 1000
	out := []any{}
	for page := 1; ; page++ {
		found, err := list(name, asynq.PageSize(size), asynq.Page(page))
		must(err)
		for _, info := range found {
			out = append(out, task(info))
		}
		if len(found) < size {
			return out
		}
	}
}

func servers(in *asynq.Inspector) []any {
	found, err := in.Servers()
	must(err)
	out := []any{}
	for _, s := range found {
		workers := []any{}
		for _, w := range s.ActiveWorkers {
			workers = append(workers, map[string]any{"task_id": w.TaskID, "task_type": w.TaskType, "payload": string(w.TaskPayload),
				"queue": w.Queue, "started": unix(w.Started), "deadline": unix(w.Deadline)})
		}
		out = append(out, map[string]any{"id": s.ID, "host": s.Host, "pid": s.PID, "concurrency": s.Concurrency,
			"queues": s.Queues, "strict": s.StrictPriority, "started": unix(s.Started), "status": s.Status, "workers": workers})
	}
	return out
}

func history(in *asynq.Inspector, name string) []any {
	days, err := in.History(name, 2)
	must(err)
	out := []any{}
	for _, d := range days {
		out = append(out, map[string]any{"day": d.Date.Format("2006-01-02"), "processed": d.Processed, "failed": d.Failed})
	}
	return out
}

func inspect(args []string) {
	in := inspector()
	defer in.Close()
	args = append(args, "", "", "")
	switch args[0] {
	case "queues":
		printJSON(queues(in))
	case "tasks":
		printJSON(tasks(in, args[1], args[2]))
	case "task":
		info, err := in.GetTaskInfo(args[1], args[2])
		must(err)
		printJSON(task(info))
	case "servers":
		printJSON(servers(in))
	case "history":
		printJSON(history(in, args[1]))
	default:
		usage(fmt.Sprintf("inspect queues, tasks, task, servers or history, not %q", args[0]))
	}
}
