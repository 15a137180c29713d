# frozen_string_literal: true

# What happened, in order, whichever thread it happened on.
module Events
  @list = Queue.new

  class << self
    def <<(event)
      @list << event
    end

    def clear
      @list.clear
    end

    def to_a
      Array.new(@list.size) { @list.pop }.each { |event| @list << event }
    end
  end
end

class SpecJob
  include Sidekiq::Worker

  def self.inherited(subclass)
    super
    subclass.sidekiq_retries_exhausted { |job, _| Events << [:exhausted, job["retry_count"], job["error_class"]] }
  end
end

class Echo < SpecJob
  def perform(*args)
    Events << [:performed, args]
  end
end

class Boom < StandardError; end

class Fails < SpecJob
  def perform(*)
    raise Boom, "the secret is 4711"
  end
end

class FailsAndSaysWhen < Fails
  sidekiq_retry_in do |count, exception|
    Events << [:retry_in, count, exception.class.name]
    90
  end
end

class FailsAndSaysWhenStrictly < Fails
  sidekiq_retry_in(&->(_count, _exception) { 70 })
end

class NotesThePool < SpecJob
  def perform
    Events << [:pool, Sidekiq.redis_pool.equal?(Sidekiq.default_configuration.default_capsule.redis_pool)]
  end
end

class FailsAndAsksWrongly < Fails
  sidekiq_retry_in { raise "no idea" }
end

class FailsAndIsKilled < Fails
  sidekiq_retry_in { :kill }
end

class FailsAndIsDiscarded < Fails
  sidekiq_retry_in { :discard }
end

class FailsForGood < Fails
  sidekiq_retries_exhausted do |_, _|
    Events << [:exhausted]
    :discard
  end
end

class Once < Fails
  sidekiq_options retry: false
end

class FailsOnce < Fails
  sidekiq_options retry: 0
end

class FailsVeryOften < Fails
  sidekiq_options retry: 100
end

class Exits < SpecJob
  def perform
    exit 3
  end
end

class Misspells < SpecJob
  def perform
    Ehco
  end
end

# Runs until it is let go.
class Waits < SpecJob
  STARTED = Queue.new
  GO = Queue.new

  def perform
    STARTED << true
    GO.pop
  rescue Sidekiq::Shutdown
    Events << [:interrupted]
    raise
  end
end

# And fails then.
class WaitsAndFails < Waits
  def perform
    super
    raise Boom, "late"
  end
end

# As the first, and hides why it ended.
class WaitsAndWraps < Waits
  def perform
    super
  rescue Sidekiq::Shutdown
    raise Boom, "wrapped"
  end
end

# Many small ones, which stop between two of them.
if defined?(Sidekiq::IterableJob)
  class CountsToFive
    include Sidekiq::IterableJob

    def build_enumerator(cursor:)
      array_enumerator([1, 2, 3, 4, 5], cursor: cursor)
    end

    def each_iteration(number)
      Events << [:counted, number]
      return unless number == 2

      Waits::STARTED << true
      Waits::GO.pop
    end
  end
end

class Report < ActiveJob::Base
  include Sidekiq::Worker::Options
  sidekiq_retry_in { 33 }
  sidekiq_retries_exhausted { |job, _| Events << [:exhausted, job["wrapped"]] }

  def perform(name, at: nil)
    raise Boom, "no report" if name == "fails"

    Events << [:reported, name, at, provider_job_id, Thread.current.name.class]
  end
end

class NotesMiddleware
  def call(worker, job, queue)
    Events << [:middleware, worker.class.name, job["jid"], queue]
    yield
    job["args"]&.clear
  end
end

# Takes the job into its own hands, as rate limiters do.
class ReschedulesMiddleware
  def call(_worker, job, _queue)
    raise Sidekiq::JobRetry::Skip if job["reschedule"]

    yield
  end
end

Sidekiq.configure_server do |config|
  config.server_middleware do |chain|
    chain.add NotesMiddleware
    chain.add ReschedulesMiddleware
  end
  config.death_handlers << ->(job, exception) { Events << [:died, job["jid"], exception.class.name] }
  config.death_handlers << ->(_, _) { raise "a handler that fails harms nobody" }
  config.error_handlers << ->(exception, context, _config = nil) { Events << [:reported_error, exception.class.name, context[:context]] }
end
