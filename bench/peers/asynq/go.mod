module stint/bench/peers/asynq

go 1.25.0

require (
	github.com/hibiken/asynq v0.26.0
)
