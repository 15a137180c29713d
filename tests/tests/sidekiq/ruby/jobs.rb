# The application's jobs, as every Rails app has them: the client, Sidekiq itself and the app behind our worker load them.
require "rubygems"
require "json"
require "logger"
require "sidekiq"
require "sidekiq/api"

# What was a module's in Sidekiq 6 is a configuration's from 7 on.
CONFIG = Sidekiq.respond_to?(:default_configuration) ? Sidekiq.default_configuration : Sidekiq
Redis.silence_deprecations = true if defined?(Redis)
CONFIG.logger = Logger.new($stderr, level: Logger::ERROR)
CONFIG.redis = { url: ENV.fetch("REDIS_URL"), size: Integer(ENV.fetch("POOL", "30")) }

# What ran, where everybody can see it: its jid, its arguments as Ruby has them, and who ran it.
def ran(job, args)
  who = ENV.fetch("WHO", "ruby")
  Sidekiq.redis { |redis| redis.lpush("ran", JSON.generate("jid" => job.jid, "args" => args, "who" => who)) }
end

class Echo
  include Sidekiq::Worker
  def perform(*args)
    ran(self, args)
  end
end

class Hopeless
  include Sidekiq::Worker
  sidekiq_options retry: 3, backtrace: 2
  def perform(*args)
    ran(self, args)
    raise ArgumentError, "no luck with #{args.inspect}"
  end
end

class SlowAndHopeless
  include Sidekiq::Worker
  def perform(seconds)
    sleep(seconds)
    raise ArgumentError, "no luck, and late"
  end
end

# Every tenth fails, and is not retried: among the dead it is settled, once.
class Tenth
  include Sidekiq::Worker
  sidekiq_options retry: 0
  def perform(number, seconds = 0)
    sleep(seconds)
    ran(self, [number])
    raise "a tenth" if (number % 10).zero?
  end
end

# Fails the first time, wherever that is.
class SecondTime
  include Sidekiq::Worker
  sidekiq_options retry: 1
  def perform(number)
    ran(self, [number])
    raise "the first time" if Sidekiq.redis { |redis| redis.call("SADD", "tried", number) } == 1
  end
end

# Runs until it is let go.
class Patient
  include Sidekiq::Worker
  def perform(*args)
    Sidekiq.redis { |redis| redis.incr("started") }
    sleep 0.02 until Sidekiq.redis { |redis| redis.get("go") }
    ran(self, args)
  end
end

# Kills the application that runs it.
class Killer
  include Sidekiq::Worker
  def perform
    Sidekiq.redis { |redis| redis.incr("started") }
    Process.kill(:KILL, Process.pid)
    sleep
  end
end

# An ActiveJob, as Rails wraps it: what it is stands within its one argument.
module ActiveJob
  module QueueAdapters
    class SidekiqAdapter
      class JobWrapper < Patient
      end
    end
  end
end
