# SPDX-License-Identifier: Apache-2.0
#
# sidekiq.rb - Sidekiq with its default of 10 threads; push_bulk for many.  A job is popped and gone: there is no
# acknowledgement and no history.

require "json"
require "sidekiq/cli"
require "sidekiq/api"
require "sidekiq/launcher"

SIZE = 60
CONCURRENCY = Integer(ENV["PEER_CONCURRENCY"] || 10)
$stdout.sync = true
Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)
Sidekiq.logger.level = Logger::ERROR
url = { url: "unix://#{ENV.fetch("PEER_REDIS")}" }
Sidekiq.configure_client { |c| c.redis = url }
Sidekiq.configure_server { |c| c.redis = url }

def clock
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

def payload(i)
  head = %({"i":#{i},"p":")
  [i, "x" * [0, SIZE - head.length - 2].max]
end

class Noop
  include Sidekiq::Worker
  sidekiq_options retry: 3
  class << self
    attr_accessor :handle
  end

  def perform(i, _p)
    Noop.handle.call(i)
  end
end

def report(jobs, start)
  puts JSON.generate(jobs: jobs, seconds: (clock - start) / 1e9)
end

def launch
  options = Sidekiq.options.merge(queues: ["default"], concurrency: CONCURRENCY, timeout: 2)
  launcher = Sidekiq::Launcher.new(options)
  launcher.run
  launcher
end

def drain(n)
  seen = 0
  lock = Mutex.new
  all = Queue.new
  Noop.handle = ->(_) { lock.synchronize { all << true if (seen += 1) == n } }
  start = clock
  launch
  all.pop
  sleep 0.002 while Sidekiq::Queue.new.size.positive?
  report(n, start)
end

what, count, step = ARGV
n = count.to_i
case what
when "one"
  start = clock
  n.times { |i| Noop.perform_async(*payload(i)) }
  report(n, start)
when "bulk"
  start = clock
  (0...n).each_slice(step.to_i) { |some| Sidekiq::Client.push_bulk("class" => Noop, "args" => some.map { |i| payload(i) }) }
  report(n, start)
when "drain"
  drain(n)
when "produce"
  puts "ready"
  $stdin.each_line do |line|
    Noop.perform_async(*payload(line.to_i))
    puts "#{line.strip} #{clock}"
  end
when "work"
  Noop.handle = ->(i) { puts "#{i} #{clock}" }
  launch
  puts "ready"
  $stdin.each_line { nil }
end
exit!(0)
