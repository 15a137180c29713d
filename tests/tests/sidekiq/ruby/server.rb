# Sidekiq itself, with its poller in a hurry.
require_relative "jobs"
require "sidekiq/launcher"
require "sidekiq/cli"
options = Sidekiq.options
options[:concurrency] = Integer(ENV.fetch("CONCURRENCY", "5"))
options[:queues] = ENV.fetch("QUEUES", "default").split(",")
options[:timeout] = 5
options[:poll_interval_average] = 0.1
options[:fetch] = Sidekiq::BasicFetch.new(options)
stop = Queue.new
trap("TERM") { Thread.new { stop << true } }
launcher = Sidekiq::Launcher.new(options)
launcher.run
warn "Sidekiq runs"
stop.pop
launcher.stop
