# Sidekiq itself, with its poller in a hurry.
require_relative "jobs"
require "sidekiq/cli"
require "sidekiq/launcher"

concurrency = Integer(ENV.fetch("CONCURRENCY", "5"))
queues = ENV.fetch("QUEUES", "default").split(",")
hurry = { timeout: 5, poll_interval_average: 0.1 }
options = if CONFIG.respond_to?(:default_capsule)
  CONFIG.concurrency = concurrency
  CONFIG.queues = queues
  CONFIG.merge!(hurry)
  CONFIG
else
  Sidekiq.options.merge!(hurry, concurrency: concurrency, queues: queues)
  Sidekiq.options[:fetch] = Sidekiq::BasicFetch.new(Sidekiq.options)
  Sidekiq.options
end
stop = Queue.new
trap("TERM") { Thread.new { stop << true } }
launcher = Sidekiq::Launcher.new(options)
launcher.run
warn "Sidekiq runs"
stop.pop
launcher.stop
